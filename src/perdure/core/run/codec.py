"""Events and state to JSON text and back, versioned: old histories stay readable for ever.

A commit's events are stored together as `{"v": 1, "events": […]}`. `v` is the format of the
whole text. When the shape of an event changes, `FORMAT` grows by one and `UPCASTERS` gets a
function that turns the older format's plain objects into the next one's.

A policy is stored as far as it differs from `Policy()`. Most do not, and it is half of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, get_type_hints

import msgspec
from msgspec.structs import asdict, astuple, replace

from perdure.core.json_text import NULL
from perdure.core.run.events import Event, RunCreated
from perdure.core.run.reducer import made
from perdure.core.run.run import STATE_FIELDS, Policy, Run
from perdure.errors import InvalidInput, UnreadableHistory

FORMAT = 1

Objects = list[dict[str, Any]]
UPCASTERS: dict[int, Callable[[Objects], Objects]] = {}
"""From the format that is the key to the next one. The objects' values are still JSON text
(`msgspec.Raw`), so that payloads come through byte for byte."""


class _Packed(msgspec.Struct, gc=False):
    v: int
    events: tuple[Event, ...]


class _Plain(msgspec.Struct):
    """Any format: read far enough to know which one it is."""

    v: int
    events: msgspec.Raw = NULL


_run_types = get_type_hints(Run, include_extras=True)
_run_fields = {field.name: field for field in msgspec.structs.fields(Run)}
_State = msgspec.defstruct(
    "_State",
    [
        (name, _run_types[name])
        if _run_fields[name].required
        else (name, _run_types[name], _run_fields[name].default)
        for name in STATE_FIELDS
    ],
    frozen=True,
    omit_defaults=True,
    gc=False,
)

_encode = msgspec.json.Encoder().encode
_decode_packed = msgspec.json.Decoder(_Packed).decode
_decode_plain = msgspec.json.Decoder(_Plain).decode
_decode_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_decode_state = msgspec.json.Decoder(_State).decode


def encode_events(events: Sequence[Event]) -> str:
    """One commit's events, as they are stored."""
    first = events[0]
    if type(first) is RunCreated:
        events = (replace(first, policy=_difference(first.policy)), *events[1:])
    return _encode(_Packed(FORMAT, tuple(events))).decode()


@lru_cache
def _difference(policy: Policy) -> msgspec.Raw:
    """What a policy says differently, as it is stored."""
    said, usual = asdict(policy), asdict(Policy())
    return msgspec.Raw(_encode({name: said[name] for name in said if said[name] != usual[name]}))


def decode_events(text: str | bytes) -> tuple[Event, ...]:
    """One commit's events, from whatever format they were stored in.

    Raises UnreadableHistory for a format newer than this code, and for damaged text.
    """
    try:
        packed = _decode_packed(text)
        if packed.v == FORMAT:
            return packed.events
    except (ValueError, InvalidInput):
        # An older format may have another shape altogether; `_upcast` tells old from damaged.
        pass
    return _upcast(text)


def _upcast(text: str | bytes) -> tuple[Event, ...]:
    try:
        plain = _decode_plain(text)
        if plain.v > FORMAT:
            advice = f"it has format {plain.v}, this code reads up to {FORMAT}: upgrade Perdure"
            raise UnreadableHistory("a stored event", advice)
        objects = _decode_objects(plain.events)
        for version in range(plain.v, FORMAT):
            objects = UPCASTERS[version](objects)
        return _decode_packed(_encode({"v": FORMAT, "events": objects})).events
    except (ValueError, KeyError, InvalidInput) as error:
        raise UnreadableHistory("a stored event", f"it is damaged: {error}") from error


def encode_state(run: Run) -> str:
    """What may change about a run, as it is stored beside its history."""
    # Spelt out, since looking the fields up by name takes twice as long.
    state = _State(
        run.queue,
        run.status,
        run.sequence,
        run.updated_at,
        run.priority,
        run.run_at,
        run.trace_carrier,
        run.counters,
        run.lease,
        run.dispatched_at,
        run.dispatch_expires_at,
        run.started_at,
        run.finished_at,
        run.failure,
        run.streak,
        run.result_json,
        run.reason,
        run.cancellation,
        run.awaiting,
        run.interruptions,
        run.executed_version,
        run.misfits,
        run.deaths,
    )
    return _encode(state).decode()


def restore(created: Event, state: str | bytes, lease_expires_at: datetime | None) -> Run:
    """The stored run: its first event, its state, and the lease expiry that renewals moved."""
    if not isinstance(created, RunCreated):
        raise UnreadableHistory(created.run_id, "its history does not begin with its creation")
    try:
        run = made(created, astuple(_decode_state(state)))
    except ValueError as error:
        raise UnreadableHistory(created.run_id, f"its state is damaged: {error}") from error
    if run.lease is None or lease_expires_at is None:
        return run
    return replace(run, lease=run.lease.renewed_until(lease_expires_at))
