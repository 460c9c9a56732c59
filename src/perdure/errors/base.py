"""What all errors have in common."""

from __future__ import annotations


class PerdureError(Exception):
    """Base of every error Perdure raises on purpose."""

    retryable = False
