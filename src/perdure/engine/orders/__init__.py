"""Operators' orders where there is no database: a server is asked, and decides what follows.

Looking is the same everywhere. Who orders is the key, whatever `by` says.
"""
