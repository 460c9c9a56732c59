"""Tasks that are HTTP requests or commands instead of Python functions."""
