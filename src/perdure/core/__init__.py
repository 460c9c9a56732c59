"""The pure model: values in, values out. No clock, no randomness, no I/O."""
