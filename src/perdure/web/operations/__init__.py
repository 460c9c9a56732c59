"""The routes of the HTTP API and what each of them does."""
