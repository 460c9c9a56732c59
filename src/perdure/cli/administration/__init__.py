"""Commands about a whole database."""
