"""Recover leases, expire runs, delete old ones."""
