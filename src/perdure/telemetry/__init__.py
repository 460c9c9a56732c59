"""What the engine tells about itself: one table of names, counters, and their renderings."""
