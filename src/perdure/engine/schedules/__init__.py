"""Schedules: the scheduler, and what operators do about schedules."""
