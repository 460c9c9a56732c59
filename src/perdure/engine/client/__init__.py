"""Trigger runs and wait for them."""
