"""One attempt: on a loop, in a thread, in a process."""
