"""Commands for developing and for trying things."""
