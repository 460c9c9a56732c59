"""How many runs at once, how many in a time, and in whose turn."""
