"""Why a run or a time did not run, and what is unhealthy."""
