"""One run's step, ready to be stored: its events, what they lead to, and what must hold."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from perdure.core.json_text import as_it_will_be_read
from perdure.core.limits.admission import Gate, freed_gates
from perdure.core.run.bounds import CARRYING, check_bounds
from perdure.core.run.effects import NO_EFFECTS, DeadLetterClosed, Effects, consequences
from perdure.core.run.events import Event, RecordedEvent
from perdure.core.run.lifecycle import EventType
from perdure.core.run.reducer import project
from perdure.core.run.run import WORKER, Run


class Commit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an adapter stores, all of it or nothing, if the stored run is where it starts.

    `lease_token` is the token the stored row must hold (none: no lease). `needs_expiry`: the
    step rests on that lease having expired, which storage judges on the row, after its lock.
    `freed`: gates at which it makes room for one more. `is_death`: an attempt ends because its
    worker died, and the run is not blamed for it.
    """

    commit_id: str
    expected_sequence: int
    events: tuple[Event, ...]
    run: Run
    effects: Effects = NO_EFFECTS
    lease_token: str | None = None
    needs_expiry: bool = False
    freed: tuple[Gate, ...] = ()
    is_death: bool = False

    @property
    def records(self) -> tuple[RecordedEvent, ...]:
        """The events as they will stand in the run's history."""
        first = self.expected_sequence + 1
        return tuple([RecordedEvent(first + i, event) for i, event in enumerate(self.events)])


def prepare_commit(
    run: Run | None,
    events: Sequence[Event],
    commit_id: str,
    *,
    pushed_queues: Collection[str] = (),
    dead_letter_closed: DeadLetterClosed | None = None,
) -> Commit:
    """The commit that takes `run` (none: a new one) through `events`.

    Raises InvariantViolation if they cannot happen to it, InvalidInput if they cannot be kept.
    """
    for event in events:
        if event.type in CARRYING or event.meta is not None:
            check_bounds(event)
        if event.type not in _OWN_WORDS:
            as_it_will_be_read(event, event.type)
    expected = 0 if run is None else run.sequence
    after = project(run, events, expected)
    effects = consequences(after, events, pushed_queues=pushed_queues)
    if dead_letter_closed is not None:
        effects = msgspec.structs.replace(effects, dead_letter_closed=dead_letter_closed)
    lease = None if run is None else run.lease
    return Commit(
        commit_id=commit_id,
        expected_sequence=expected,
        events=tuple(events),
        run=after,
        effects=effects,
        lease_token=None if lease is None else lease.token,
        needs_expiry=run is not None and rests_on_expiry(run, events),
        freed=() if run is None else freed_gates(run, after),
        is_death=run is not None and after.deaths > run.deaths,
    )


_OWN_WORDS = frozenset(
    {
        EventType.CREATED,  # read back where it is decided, since it comes back normalized
        EventType.LEASE_CLAIMED,
        EventType.LEASE_HEARTBEAT,
        EventType.STARTED,
        EventType.SUCCEEDED,
        EventType.EXPIRED,
    }
)
"""Events of our own making, every value of which was checked on its way in. All others carry what
operators and handlers say, and are read back before they are stored."""

_TAKES_OVER = frozenset({EventType.DELIVERY_REQUESTED, EventType.LEASE_CLAIMED})


def rests_on_expiry(run: Run, events: Sequence[Event]) -> bool:
    """Whether somebody else than the holder ends this run's lease, which only expiry allows."""
    lease = run.lease
    if lease is None:
        return False
    for event in events:
        kind, actor = event.type, event.actor
        is_holder = actor.id == lease.worker_id and actor.type is WORKER
        if kind in _TAKES_OVER or not (is_holder or kind is EventType.CANCELLATION_REQUESTED):
            return True
    return False
