"""A worker or a client without a database: the client of the worker protocol."""
