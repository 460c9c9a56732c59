"""The HTTP connection to a Perdure server, for processes without a database."""
