"""Outgoing requests: strict URLs, allowed addresses, signatures."""
