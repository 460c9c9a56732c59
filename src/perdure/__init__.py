"""Perdure: durable runs for ordinary Python functions."""
