"""The one write path: load, decide, project, commit; and again if somebody was faster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from perdure.core.commit import prepare_commit
from perdure.core.effects import DeadLetterClosed
from perdure.core.events import Event
from perdure.core.run import Run
from perdure.engine.ids import Ids
from perdure.errors import PerdureError, RunNotFound, SequenceConflict, UnreadableHistory
from perdure.storage.protocol import Outcome, Storage

Decide = Callable[[Run, datetime], Sequence[Event]]

MOST_CONFLICTS = 100
"""So many lost races in a row are not bad luck any more."""


async def load(storage: Storage, run_id: str) -> Run:
    """Raises RunNotFound, or UnreadableHistory if it is there and cannot be read."""
    found = await storage.get([run_id])
    if run_id in found:
        return found[run_id]
    if await storage.events(run_id):  # raises itself, if it is these that cannot be read
        raise UnreadableHistory(run_id, "its state is damaged; `perdure audit` tells more")
    raise RunNotFound(run_id)


async def advance(storage: Storage, run_id: str, decide: Decide, now: datetime, ids: Ids) -> Run:
    """Take a run through what `decide` says about it; the run as it is then.

    Raises what `decide` raises, and RunNotFound.
    """
    conflicts = 0
    while True:
        run = await load(storage, run_id)
        events = decide(run, now)
        if not events:
            return run
        commit = prepare_commit(run, events, ids.commit_id())
        [outcome] = await storage.commit([commit])
        conflicts += isinstance(outcome, SequenceConflict)
        if not isinstance(outcome, SequenceConflict) or conflicts == MOST_CONFLICTS:
            accept(outcome)
            return commit.run


async def create(
    storage: Storage,
    events: Sequence[Event],
    ids: Ids,
    *,
    pushed_queues: Collection[str] = (),
    dead_letter_closed: DeadLetterClosed | None = None,
) -> Outcome:
    """Store a new run; Committed or Existing. Raises whatever else became of it."""
    commit = prepare_commit(
        None,
        events,
        ids.commit_id(),
        pushed_queues=pushed_queues,
        dead_letter_closed=dead_letter_closed,
    )
    [outcome] = await storage.commit([commit])
    return accept(outcome)


def accept(outcome: Outcome) -> Outcome:
    """An outcome that is no error. Raises those that are."""
    if isinstance(outcome, PerdureError):
        raise outcome
    return outcome
