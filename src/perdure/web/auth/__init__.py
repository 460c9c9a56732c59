"""Check requests before they are carried out: origin, key, scope, rate."""
