"""Bodies, queries and views of the HTTP API."""
