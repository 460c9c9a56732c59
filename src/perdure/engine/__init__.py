"""Makes things happen: clock, ids, the write path, and later client, worker and scheduler."""
