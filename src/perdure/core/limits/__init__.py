"""Concurrency limits, rates and fair turns."""
