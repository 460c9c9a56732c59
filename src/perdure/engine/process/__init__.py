"""Threads, forks, signals and the user of an operating system process."""
