"""From a function to a task."""
