"""What handlers really did, against what the history says they did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta

import msgspec

from perdure.core.decide.lease import MAX_INTERRUPTIONS
from perdure.core.invariants import CommittedStep
from perdure.core.run import events as e
from perdure.core.run.failure import CRASH, FailureKind
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import ActorType, Lease, Run
from simulation.loop import Process
from simulation.notes import Notes

RETURNED, RAISED, RELEASED, STOPPED = "returned", "raised", "released", "stopped"


class Performance(msgspec.Struct):
    """One call of a handler."""

    process: Process
    token: str
    begun_at: float
    is_stubborn: bool
    ending: str | None = None
    ended_at: float = 0.0
    was_asked: bool = False
    """Whether it had been asked to stop when it ended."""


class Ledger:
    """Handlers write into it as they begin and end; the oracle asks it about every step."""

    def __init__(
        self,
        time: Callable[[], float],
        notes: Notes,
        *,
        lease_ttl: timedelta,
        heed: float,
        is_brisk: bool,
    ) -> None:
        self.time = time
        self._notes = notes
        self._lease_ttl = lease_ttl
        self._is_brisk = is_brisk
        """Whether what has happened in a process is known all over it before time passes."""
        self._heed = heed
        """Within how many seconds a running attempt hears of a cancellation."""
        self._performances: dict[tuple[str, int], Performance] = {}
        self._started: dict[tuple[str, int], str] = {}
        self._active: Counter[Process] = Counter()
        self.places: dict[Process, int] = {}
        self.asked: dict[str, float] = {}
        self.unanswered: set[str] = set()
        self.interrupted: set[str] = set()
        """Tokens of attempts whose transaction could not begin, or not commit."""
        self.last_outage: Callable[[], float] = lambda: -1.0

    def started(self, run_id: str, attempt: int, lease: Lease) -> None:
        """`run.started` is durable."""
        self._started[run_id, attempt] = lease.token

    def begin(self, process: Process, run: Run, *, is_stubborn: bool) -> Performance:
        assert run.lease is not None
        attempt = run.lease.attempt or 0
        self._notes.say(process.name, f"begin {run.id[-6:]} attempt {attempt}")
        if self._started.get((run.id, attempt)) != run.lease.token:
            self._fail(run, f"attempt {attempt} was begun before its start was durable")
        if (run.id, attempt) in self._performances:
            self._fail(run, f"attempt {attempt} was begun twice")
        if any(
            performance.process is process and not performance.ending
            for number in range(1, attempt)
            if (performance := self._performances.get((run.id, number))) is not None
        ):
            self._notes.sometimes("run again by its own former owner")
        performance = Performance(process, run.lease.token, self.time(), is_stubborn)
        self._performances[run.id, attempt] = performance
        self._active[process] += 1
        if self._active[process] > self.places[process]:
            self._fail(run, f"{process.name} runs more than {self.places[process]} at once")
        return performance

    def end(self, run: Run, performance: Performance, ending: str, *, was_asked: bool) -> None:
        self._notes.say(performance.process.name, f"end {run.id[-6:]} {ending}")
        performance.ending = ending
        performance.was_asked = was_asked
        performance.ended_at = self.time()
        self._active[performance.process] -= 1

    def active(self, process: Process) -> int:
        return self._active[process]

    def judge(self, step: CommittedStep, holder: Process | None) -> list[str]:
        """The problems of one step with the truth."""
        lease, event = step.before.lease, step.events[0]
        if lease is None:
            return []
        by_holder = (event.actor.type, event.actor.id) == (ActorType.WORKER, lease.worker_id)
        if by_holder:
            told = [*self._outcome(step, lease, holder), *self._heard(step, lease)]
            return [*told, *self._budget(step)]
        if isinstance(event, e.RunCancellationRequested):
            return []
        return [*self._recovery(step, lease, holder), *self._budget(step)]

    def _outcome(self, step: CommittedStep, lease: Lease, holder: Process | None) -> Iterator[str]:
        """The holder wrote what its handler did."""
        event = step.events[0]
        performance = self._performances.get((step.after.id, lease.attempt or 0))
        ending = None if performance is None else performance.ending
        match event:
            case e.RunSucceeded():
                token = _result_token(step.after)
                if ending != RETURNED or token != lease.token:
                    yield f"succeeded, but its handler {ending or 'has not ended'} ({token})"
            case e.RunRetryScheduled() | e.RunFailed() | e.RunDeadLettered():
                yield from self._failure(step, event, lease, ending)
            case e.RunReleased(reason=e.INTERRUPTED):
                yield from self._interruption(lease)
            case e.RunReleased(reason="shutdown"):
                yield from self._handed_over(step, performance, holder)
            case e.RunReleased() if ending != RELEASED:
                yield f"released, but its handler {ending or 'has not ended'}"
            case e.RunCancelled() if lease.token not in self.interrupted:
                if self._ended_by_itself(performance) and ending != RELEASED:
                    yield f"cancelled, but its handler {ending}"
            case _:
                pass

    def _interruption(self, lease: Lease) -> Iterator[str]:
        self._notes.sometimes("transaction rolled back")
        if lease.token not in self.interrupted:
            yield "interrupted, but nothing had happened to its transaction"

    def _failure(
        self,
        step: CommittedStep,
        event: e.RunRetryScheduled | e.RunFailed | e.RunDeadLettered,
        lease: Lease,
        ending: str | None,
    ) -> Iterator[str]:
        """What the database has interrupted is no failure, unless again and again."""
        if event.failure.kind is FailureKind.TIMEOUT:
            return
        if lease.token not in self.interrupted:
            if ending != RAISED:
                yield f"{event.type}, but its handler {ending or 'has not ended'}"
        elif step.before.interruptions < MAX_INTERRUPTIONS:
            yield f"{event.type}, but the database had interrupted the attempt"

    def _handed_over(
        self, step: CommittedStep, performance: Performance | None, holder: Process | None
    ) -> Iterator[str]:
        assert step.before.lease is not None
        stopping = holder is not None and holder.is_stopping
        if performance is None:
            if step.before.lease.token in self.unanswered:
                self._notes.sometimes("ambiguous claim settled")
            elif not stopping:
                yield "given back, but its claim was answered"
        elif self._ended_by_itself(performance):
            yield f"handed over, but its handler {performance.ending}"
        elif not stopping:
            yield "handed over by a worker that does not stop"

    def _ended_by_itself(self, performance: Performance | None) -> bool:
        """Whether its handler had ended before anybody asked it to, and its worker knew."""
        if performance is None or performance.was_asked or not self._is_brisk:
            return False
        return performance.ending in (RETURNED, RAISED, RELEASED)

    def _budget(self, step: CommittedStep) -> Iterator[str]:
        event, after = step.events[0], step.after
        failures, tries = after.counters.failures, after.policy.tries
        if isinstance(event, e.RunRetryScheduled) and failures >= tries:
            yield f"retried after {failures} failures of {tries}"
        is_blamed = isinstance(event, e.RunRetryScheduled) and event.failure.type == CRASH.type
        if is_blamed and not step.before.is_suspect:
            yield "blamed for a death beside other runs"
        exhausted = isinstance(event, e.RunDeadLettered) and event.reason == "exhausted"
        if exhausted and failures < tries:
            yield f"dead after {failures} failures of {tries}"

    def _heard(self, step: CommittedStep, lease: Lease) -> Iterator[str]:
        """A cancellation reaches the handler of an undisturbed worker soon."""
        performance = self._performances.get((step.after.id, lease.attempt or 0))
        if step.before.status is not Status.CANCELLATION_REQUESTED or performance is None:
            return
        asked = max(self.asked[step.after.id], performance.begun_at)
        disturbed = max(performance.process.disturbed_until, self.last_outage())
        late = (performance.ended_at or self.time()) - asked
        if late > self._heed and disturbed < asked - 1.0 and not performance.is_stubborn:
            yield f"its handler heard of the cancellation {late:.1f} s late"

    def _recovery(self, step: CommittedStep, lease: Lease, holder: Process | None) -> Iterator[str]:
        """Only a holder that died or was disturbed loses a lease; an outage is no reason."""
        if holder is None or holder.is_dead or holder.is_stopping:
            return
        ttl = (step.before.policy.lease_ttl or self._lease_ttl).total_seconds()
        expired = self.time() - (step.now - lease.expires_at).total_seconds()
        if holder.is_paused or holder.disturbed_until >= expired - ttl:
            if holder.is_paused:
                self._notes.sometimes("node paused past a lease")
            return
        yield f"{holder.name} lost its lease though nothing had happened to it"

    def _fail(self, run: Run, problem: str) -> None:
        self._notes.fail(f"run {run.id}: {problem}")


def _result_token(run: Run) -> object:
    result = run.result
    return result.get("token") if isinstance(result, dict) else None
