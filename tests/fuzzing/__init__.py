"""Seeded calls over every route: valid, almost valid and hostile ones, built from the route table.

`drive.fuzz` sends them to a server process and returns what must not have happened.
"""
