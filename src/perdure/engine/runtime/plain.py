"""Text and JSON of objects that handlers give, of any class: to make them never raises."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.core.json_text import encode_value
from perdure.core.run.failure import MAX_DETAILS, clean_text


def plain(details: Any, limit: int = MAX_DETAILS, field: str = "details") -> dict[str, Any] | None:
    """Return details as JSON. Values that JSON cannot hold must not make a commit fail."""
    if details is None:
        return None
    try:
        made = msgspec.to_builtins(details, enc_hook=repr, str_keys=True)
        encode_value(made, field=field, limit=limit)
        return made if isinstance(made, dict) else {"value": made}
    except Exception as error:  # noqa: BLE001  # a `__repr__` that raises, a value within itself
        return {"left_out": clean_text(error_text(error))}


def error_text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001  # a `__str__` that raises
        return f"(its text cannot be had: {type(broken).__name__})"
