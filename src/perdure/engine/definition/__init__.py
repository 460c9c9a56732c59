"""Turn functions into tasks, which can be called, and triggered durably."""
