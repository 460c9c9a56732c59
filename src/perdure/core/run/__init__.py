"""A run and its history, as values."""
