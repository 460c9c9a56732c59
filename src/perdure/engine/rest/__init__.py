"""Operators of an app whose URL is a server's: they read and write through the HTTP API.

They return the same records as operators beside the database, decoded from the API's answers.
What the server redacts stays in them as the text `[redacted]`.
"""
