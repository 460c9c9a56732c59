"""How much an event may carry beside its run's payload and result.

Checked wherever a commit is prepared, so that neither a handler nor a worker elsewhere can store
a history that is too deep to be read, or too large to be shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from perdure.core.decide.create import MAX_META
from perdure.core.events import Completion, Event, RunCancelled, RunCreated
from perdure.core.failure import MAX_DETAILS, MAX_MESSAGE, Failure
from perdure.core.values import DEFAULT_LIMIT, encode_value
from perdure.errors import InvalidInput

MAX_OUTPUT_BYTES = DEFAULT_LIMIT
MAX_TRACE_BYTES = 64 * 1024
MAX_TRACE_ENTRIES = 64
MAX_TEXT_CHARACTERS = MAX_MESSAGE + 100
"""Longer texts were cut to `MAX_MESSAGE`, with a note of how much is missing."""


def check_bounds(event: Event) -> None:
    """Raise InvalidInput for an event that carries too much, or something nested too deeply."""
    if event.meta is not None and not isinstance(event, RunCreated):  # checked by `decide_create`
        encode_value(event.meta, field="meta", limit=MAX_META)
    if isinstance(event, Completion | RunCancelled):
        if event.output is not None:
            encode_value(event.output, field="output", limit=MAX_OUTPUT_BYTES)
        if event.execution_trace is not None and not _is_small(event.execution_trace):
            encode_value(event.execution_trace, field="execution_trace", limit=MAX_TRACE_BYTES)
        failure = getattr(event, "failure", None)
        if failure is not None:
            _check_failure(failure)
    _check_text(getattr(event, "reason", None), "reason")


def _is_small(trace: Mapping[str, Any]) -> bool:
    """Whether it is surely within its bounds: a few numbers and words, as workers send them."""
    if len(trace) > MAX_TRACE_ENTRIES:
        return False
    return all(len(name) < 100 and _is_small_value(value) for name, value in trace.items())


def _is_small_value(value: Any) -> bool:
    return isfinite(value) if type(value) is float else type(value) is str and len(value) < 100


def _check_failure(failure: Failure) -> None:
    for name in ("type", "message", "fingerprint", "traceback"):
        _check_text(getattr(failure, name), f"failure.{name}")
    if failure.details is not None:
        encode_value(failure.details, field="failure.details", limit=MAX_DETAILS)


def _check_text(text: str | None, field: str) -> None:
    if text is not None and len(text) > MAX_TEXT_CHARACTERS:
        problem = f"must have at most {MAX_TEXT_CHARACTERS} characters, not {len(text)}"
        raise InvalidInput(field, problem)
