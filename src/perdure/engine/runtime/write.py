"""The one write path: load, decide, project, commit; and again if somebody was faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from perdure.core.run.commit import Commit, prepare_commit
from perdure.core.run.events import Event
from perdure.core.run.run import Run
from perdure.engine.runtime.ids import Ids
from perdure.engine.runtime.slices import map_in_slices
from perdure.errors import PerdureError, RunNotFound, SequenceConflict, UnreadableHistory
from perdure.storage.contract.runs import Outcome
from perdure.storage.contract.storage import Storage

Decide = Callable[[Run, datetime], Sequence[Event]]

MOST_CONFLICTS = 100
"""So many lost races in a row are not bad luck any more."""


async def load(storage: Storage, run_id: str, environment: str) -> Run:
    """Return the run. Raise RunNotFound, also for a run of another environment; UnreadableHistory
    if it is there and cannot be read."""
    run = (await storage.get([run_id])).get(run_id)
    if run is not None:
        return check_environment(run, environment)
    history = await storage.events(run_id)  # raises itself, if it is these that cannot be read
    if history and history[0].event.environment == environment:
        raise UnreadableHistory(run_id, "its state is damaged; `perdure audit` tells more")
    raise RunNotFound(run_id)


def check_environment(run: Run, environment: str) -> Run:
    """Return the run. Raise RunNotFound for a run of another environment."""
    if run.environment != environment:
        raise RunNotFound(run.id)
    return run


async def load_all(
    storage: Storage, run_ids: Sequence[str], environment: str
) -> dict[str, Run | PerdureError]:
    """Read runs together. Return each, or the error that `load` would raise."""
    found = await storage.get(run_ids)
    results: dict[str, Run | PerdureError] = {}
    for run_id in run_ids:
        try:
            run = found.get(run_id) or await load(storage, run_id, environment)
            results[run_id] = check_environment(run, environment)
        except (RunNotFound, UnreadableHistory) as error:
            results[run_id] = error
    return results


async def advance(
    storage: Storage, run_id: str, environment: str, decide: Decide, now: datetime, ids: Ids
) -> Run:
    """Commit the events that `decide` returns for a run. Return the run after them.

    Raise what `decide` raises, and RunNotFound as `load` does.
    """
    run = await load(storage, run_id, environment)
    [result] = (await advance_all(storage, [run], decide, now, ids)).values()
    if isinstance(result, PerdureError):
        raise result
    return result


async def advance_all(
    storage: Storage, runs: Sequence[Run], decide: Decide, now: datetime, ids: Ids
) -> dict[str, Run | PerdureError]:
    """Commit the events that `decide` returns for each run of one environment, all in one batch.
    Runs that others have written to meanwhile are read and decided again. Return each run after its
    events, or the error that `decide` or storage refused it with."""
    results: dict[str, Run | PerdureError] = {}
    pending: Sequence[Run] = runs
    for conflicts in range(1, MOST_CONFLICTS + 1):
        commits = await map_in_slices(partial(_prepare, decide, now, ids, results), pending)
        overtaken: list[str] = []
        changed = [commit for commit in commits if commit is not None]
        for commit, outcome in zip(changed, await storage.commit(changed), strict=True):
            if isinstance(outcome, SequenceConflict) and conflicts < MOST_CONFLICTS:
                overtaken.append(commit.run.id)
            else:
                results[commit.run.id] = (
                    outcome if isinstance(outcome, PerdureError) else commit.run
                )
        if not overtaken:
            break
        results |= await load_all(storage, overtaken, runs[0].environment)
        pending = [run for run in map(results.get, overtaken) if isinstance(run, Run)]
    return results


def _prepare(
    decide: Decide, now: datetime, ids: Ids, results: dict[str, Run | PerdureError], run: Run
) -> Commit | None:
    """Return the commit for one run; None if `results` has its result already."""
    try:
        events = decide(run, now)
        if events:
            return prepare_commit(run, events, ids.commit_id())
        results[run.id] = run
    except PerdureError as error:
        results[run.id] = error
    return None


async def create(storage: Storage, events: Sequence[Event], ids: Ids) -> Outcome:
    """Store a new run; Committed or Existing. Raises whatever else became of it."""
    [outcome] = await storage.commit([prepare_commit(None, events, ids.commit_id())])
    return accept(outcome)


def accept(outcome: Outcome) -> Outcome:
    """An outcome that is no error. Raises those that are."""
    if isinstance(outcome, PerdureError):
        raise outcome
    return outcome
