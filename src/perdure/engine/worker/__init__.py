"""Workers: claims, leases, outcomes."""
