"""Tasks that are HTTP requests or commands: nothing of them is Python."""
