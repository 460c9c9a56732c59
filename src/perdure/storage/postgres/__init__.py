"""Runs in PostgreSQL, shared by workers on many machines. Importing this needs no driver."""
