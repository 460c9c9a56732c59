"""Virtual time: event loops whose clock jumps."""
