"""Look without changing: why, doctor, integrity, overview, measurements."""
