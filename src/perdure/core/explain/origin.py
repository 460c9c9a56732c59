"""Why a run is there at all, in a few words."""

from __future__ import annotations

from perdure.core.run.run import Actor, Run, Source, SourceType
from perdure.core.text import rfc3339

_AGAIN = {SourceType.RERUN: "rerun of", SourceType.MANUAL_RETRY: "retry of"}


def origin_of(run: Run) -> str | None:
    """`schedule night, by hand: customer asked (ann)`; nothing of a plain trigger."""
    return told_origin(run.source, run.created_by)


def told_origin(source: Source, by: Actor) -> str | None:
    """The same, of what the first event says."""
    given = _given(source, by)
    if source.type is SourceType.SCHEDULE:
        how = _when(source) if given is None else f"{_how(source)}{given}"
        return f"schedule {source.schedule_id}, {how}"
    again = _AGAIN.get(source.type)
    return None if again is None else f"{again} {source.run_id}{given or ''}"


def given_by(run: Run) -> str | None:
    """Of a schedule's run that its cadence did not make: how it came to be, and why."""
    given = _given(run.source, run.created_by)
    return None if given is None else f"{_how(run.source)}{given}"


def _how(source: Source) -> str:
    if source.type in _AGAIN:
        return f"{_AGAIN[source.type]} {source.run_id}"
    return "by hand" if source.nominal_time is None else f"backfilled {_when(source)}"


def _when(source: Source) -> str:
    return "" if source.nominal_time is None else f"for {rfc3339(source.nominal_time)}"


def _given(source: Source, by: Actor) -> str | None:
    return None if source.reason is None else f": {source.reason} ({by.id or by.type})"
