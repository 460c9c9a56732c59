"""Schedules and the targets they need, written down in files."""
