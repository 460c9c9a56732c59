"""Log records and metrics: one table of their names, the counters, and the formats."""
