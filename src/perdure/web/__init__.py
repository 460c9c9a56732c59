"""The HTTP API: one table of routes over the engine, and the server that checks requests."""
