"""Measurements that back what the documentation promises. `make bench` runs them."""
