"""The campaigns. Each module here is imported, and registers its own."""
