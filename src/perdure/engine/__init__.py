"""Trigger, execute, schedule and maintain runs: everything that waits, and every loop."""
