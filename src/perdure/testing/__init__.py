"""What a test of durable code needs; nothing in here is used by Perdure itself.

`perdure.testing.postgres` starts a private PostgreSQL, without an installed server or root.
"""
