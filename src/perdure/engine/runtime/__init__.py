"""What every service of the engine needs."""
