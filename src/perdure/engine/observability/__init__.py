"""Metrics, traces, logs of runs, redaction."""
