"""What must hold of every run, at every moment, everywhere.

One list, shared by the search over the model, the simulator, the adapters' tests and
`perdure audit`. Each check answers with the problems it found; none means all is well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from perdure.core.run import events as e
from perdure.core.run.attempts import AttemptStatus, derive_attempts
from perdure.core.run.commit import rests_on_expiry
from perdure.core.run.lifecycle import Status
from perdure.core.run.reducer import replay
from perdure.core.run.run import Lease, Run
from perdure.core.schedule.completeness import check_occurrences
from perdure.errors import InvariantViolation

__all__ = [
    "CommittedStep",
    "check_history",
    "check_occurrences",
    "check_run",
    "check_step",
    "differences",
]


def check_run(run: Run) -> list[str]:
    """The problems of a run taken by itself."""
    return [problem for check in _RUN_CHECKS for problem in check(run)]


def check_history(run: Run, events: Sequence[e.Event]) -> list[str]:
    """The problems of a stored run against its history, which is the truth."""
    try:
        replayed = replay(events)
    except InvariantViolation as error:
        return [f"its history does not replay: {error}"]
    problems = [
        f"{name} is {_told(getattr(run, name))}, its history says {_told(getattr(replayed, name))}"
        for name in differences(run, replayed)
    ]
    return problems + _attempt_problems(run, events)


def _told(value: object) -> str:
    """As it is stored, but for tokens, which are nobody's business."""
    if isinstance(value, Lease):
        value = replace(value, token="…")
    return "nothing" if value is UNSET else msgspec.json.encode(value).decode()


def differences(run: Run, replayed: Run) -> list[str]:
    """The fields in which two runs differ, but for unrecorded renewals of the same lease."""
    lease, other = run.lease, replayed.lease
    if lease is not None and other is not None and lease.expires_at > other.expires_at:
        replayed = replace(replayed, lease=other.renewed_until(lease.expires_at))
    return [n for n in run.__struct_fields__ if getattr(run, n) != getattr(replayed, n)]


class CommittedStep(msgspec.Struct, frozen=True):
    """One commit, as storage accepted it at `now`: the stored run before it, and after."""

    before: Run
    events: Sequence[e.Event]
    after: Run
    now: datetime


def check_step(step: CommittedStep) -> list[str]:
    """The problems of one commit: what it may never do to a run, whoever wrote it."""
    return [problem for check in _STEP_CHECKS for problem in check(step)]


def _lease_fits_status(run: Run) -> Iterator[str]:
    if run.is_leased != (run.lease is not None):
        yield f"{run.status} with{'out' if run.lease is None else ''} a lease"
    if run.status is Status.RUNNING and run.lease is not None and run.lease.attempt is None:
        yield "running without an attempt"
    if run.status is Status.CLAIMED and run.lease is not None and run.lease.attempt is not None:
        yield "claimed with an attempt"


def _is_reachable(run: Run) -> Iterator[str]:
    """Nothing is stranded: some clock, worker, operator or signal can always move it on."""
    if run.is_terminal or run.status is Status.PAUSED:
        return
    waits = run.status is Status.WAITING and run.awaiting is not None
    if run.claimable_at is None and run.attention_at is None and not waits:
        yield f"{run.status}, and nothing will ever look at it again"


def _counters_fit(run: Run) -> Iterator[str]:
    c = run.counters
    if c.attempts > c.claims:
        yield f"{c.attempts} attempts in {c.claims} claims"
    if c.retries > c.failures:
        yield f"{c.retries} retries after {c.failures} failures"
    if run.lease is not None and run.lease.fence > c.claims:
        yield f"fence {run.lease.fence} after {c.claims} claims"
    if run.lease is not None and run.lease.attempt not in (None, c.attempts):
        yield f"the lease is for attempt {run.lease.attempt} of {c.attempts}"


def _ending_fits(run: Run) -> Iterator[str]:
    if run.is_terminal != (run.finished_at is not None):
        yield f"{run.status}, finished at {run.finished_at}"
    if run.result_json is not UNSET and run.status is not Status.SUCCEEDED:
        yield f"{run.status} with a result"
    if run.is_terminal and (run.lease or run.dispatch_expires_at or run.claimable_at):
        yield f"{run.status}, and still leased, reserved or claimable"


def _awaits_only_while_waiting(run: Run) -> Iterator[str]:
    if (run.awaiting is not None) != (run.status is Status.WAITING):
        yield f"{run.status}, awaiting {run.awaiting}"


_RUN_CHECKS: tuple[Callable[[Run], Iterator[str]], ...] = (
    _lease_fits_status,
    _is_reachable,
    _counters_fit,
    _ending_fits,
    _awaits_only_while_waiting,
)


def _terminal_is_terminal(step: CommittedStep) -> Iterator[str]:
    if step.before.is_terminal:
        yield f"{step.before.status} was followed by {step.after.status}"


def _sequence_and_time_grow(step: CommittedStep) -> Iterator[str]:
    before, after = step.before, step.after
    if after.sequence <= before.sequence or after.updated_at < before.updated_at:
        yield "sequence or time went back"


def _live_lease_is_its_holders(step: CommittedStep) -> Iterator[str]:
    """Only its own holder ends a live lease; others may ask for a cancellation."""
    lease = step.before.lease
    is_live = lease is not None and lease.expires_at > step.now
    if is_live and rests_on_expiry(step.before, step.events):
        yield "a live lease was taken"


def _renewal_is_not_undone(step: CommittedStep) -> Iterator[str]:
    lease, kept = step.before.lease, step.after.lease
    if lease is None or kept is None or lease.token != kept.token:
        return
    if kept.expires_at < lease.expires_at:
        yield "a renewal was undone"


def _fence_grows(step: CommittedStep) -> Iterator[str]:
    lease, taken = step.before.lease, step.after.lease
    if lease is None or taken is None or lease.token == taken.token:
        return
    if taken.fence <= lease.fence:
        yield "the fence did not grow with the claim"


_STEP_CHECKS: tuple[Callable[[CommittedStep], Iterator[str]], ...] = (
    _terminal_is_terminal,
    _sequence_and_time_grow,
    _live_lease_is_its_holders,
    _renewal_is_not_undone,
    _fence_grows,
)


def _attempt_problems(run: Run, events: Sequence[e.Event]) -> list[str]:
    attempts = derive_attempts(events)
    problems = []
    if [attempt.number for attempt in attempts] != list(range(1, run.counters.attempts + 1)):
        problems.append("its attempts are not numbered from one without gaps")
    open_attempts = [a for a in attempts if a.status is AttemptStatus.RUNNING]
    if len(open_attempts) > (1 if run.is_leased else 0):
        problems.append("an attempt has not ended")
    return problems
