"""What operators do about runs, queues, limits, keys and workers."""
