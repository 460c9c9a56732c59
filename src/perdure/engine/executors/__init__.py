"""What runs where there is no Python handler: requests to URLs, and commands.

`target` describes them, `http` and `shell` carry them out, `serving` takes them from the catalogue.
"""
