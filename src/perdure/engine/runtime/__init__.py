"""Clock, ids, defaults, wake-ups and other parts that every service of the engine needs."""
