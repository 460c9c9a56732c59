"""The adapter for those who have no database: it asks a Perdure server, over HTTP."""
