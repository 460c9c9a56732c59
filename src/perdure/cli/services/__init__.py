"""Commands that run until stopped."""
