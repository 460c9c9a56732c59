"""Settings, signatures and targets of tasks, and the catalogue that keeps them."""
