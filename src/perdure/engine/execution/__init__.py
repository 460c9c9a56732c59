"""Execute one attempt: on a loop, in a thread or in a process."""
