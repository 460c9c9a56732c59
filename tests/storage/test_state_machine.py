"""Any sequence of operations, on every adapter, against the dict model.

Hypothesis alone prefers short and quiet lives, so besides single operations there is the rule
`live`: two dozen operations whose choices are evenly spread, from a seed that Hypothesis draws.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from random import Random
from typing import Any, TypeVar

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import raw
from builders import OPERATOR, TASK
from perdure.core.decide import (
    decide_attention,
    decide_cancel,
    decide_pause,
    decide_release,
    decide_reschedule,
    decide_resume,
    decide_return,
    decide_wake,
)
from perdure.core.invariants import check_history, check_run
from perdure.core.limits import settings as settings_of_limits
from perdure.core.limits.admission import LimitScope
from perdure.core.limits.rates import Rate
from perdure.core.limits.settings import Limit
from perdure.core.run.commit import Commit
from perdure.core.run.events import Event
from perdure.core.run.run import Awaiting, AwaitingKind, Policy, Run
from perdure.engine.runtime.clock import SystemClock
from perdure.errors import NotAllowed
from perdure.storage import open_storage
from perdure.storage.contract.runs import Committed, Outcome, Renewal, RunFilter
from storage_kit import (
    failure,
    known_limit,
    new_run,
    now,
    put_limit,
    request,
    set_limit,
    step,
    success,
    token_of,
)
from storage_model import Model

T = TypeVar("T")

TASKS = (TASK, "other")
ACTIONS = ("cancel", "pause", "resume", "move", "wake")
LIMITED = (LimitScope.QUEUE, LimitScope.TASK, LimitScope.KEY)
GONE = timedelta(microseconds=1)
"""A lease this short has expired before anybody can look."""

_places = st.integers(0, 4)
_randoms = st.randoms(use_true_random=True)
_owned: list[dict[str, str]] = [
    {},
    {"singleton_key": "only"},
    {"idempotency_key": "once"},
    {"idempotency_key": "once", "singleton_key": "only"},
]
_new_runs = st.builds(
    lambda fields, keys: fields | keys,
    st.fixed_dictionaries(
        {
            "task": st.sampled_from(TASKS),
            "queue": st.sampled_from(["mail", "default"]),
            "priority": st.integers(0, 2),
            "concurrency_key": st.sampled_from(["a", "b", None]),
        }
    ),
    st.sampled_from(_owned),
)


def _fields(random: Random) -> dict[str, Any]:
    return {
        "task": random.choice(TASKS),
        "queue": random.choice(["mail", "default"]),
        "priority": random.randrange(3),
        "concurrency_key": random.choice(["a", "b", None]),
    } | random.choice(_owned)


def _some_run(machine: StorageMachine) -> bool:
    return bool(machine.model.runs)


def _some_lease(machine: StorageMachine) -> bool:
    return any(run.lease for run in machine.model.runs.values())


def _some_suspect(machine: StorageMachine) -> bool:
    return any(run.is_suspect for run in machine.model.runs.values())


class StorageMachine(RuleBasedStateMachine):
    """Subclassed for each adapter with the URL of an empty database."""

    url: str

    def __init__(self) -> None:
        super().__init__()
        raw.empty(self.url)
        self.runner = asyncio.Runner()
        self.storage = open_storage(self.url, SystemClock())
        self.model = Model()
        self.old: list[Commit] = []
        self.unrenewed: dict[str, Run] = {}

    def teardown(self) -> None:
        self.do(self.storage.close())
        self.runner.close()

    def do(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def commit(self, *items: Commit) -> None:
        expected = [self.model.commit(item) for item in items]
        outcomes = self.do(self.storage.commit(items))
        assert [repr(it) for it in map(_without_events, outcomes)] == [repr(it) for it in expected]
        self.old += items

    def some(self, random: Random, fits: Callable[[Run], object]) -> Run | None:
        runs = [run for run in self.model.runs.values() if fits(run)]
        return random.choice(runs) if runs else None

    @initialize(wanted=st.lists(_new_runs, min_size=3, max_size=6), random=_randoms)
    def begin(self, wanted: list[dict[str, Any]], random: Random) -> None:
        self.commit(*(new_run([n], **fields) for n, fields in enumerate(wanted)))
        self.live(random)

    @rule(fields=_new_runs, later=st.booleans(), poison=st.booleans())
    def create(self, fields: dict[str, Any], later: bool, poison: bool) -> None:
        policy = Policy(max_attempts=2, poison_threshold=1 if poison else None)
        run_at = now() + timedelta(days=1) if later else None
        self.commit(new_run([fields["queue"]], run_at=run_at, policy=policy, **fields))

    @rule(left_over=_places, unstarted=_places, one_task=st.booleans())
    def claim_some(self, left_over: int, unstarted: int, one_task: bool) -> None:
        start = max(4 - left_over - unstarted, 0)
        self.claim(4 - left_over, start=start, tasks=(TASK,) if one_task else TASKS)

    @rule()
    def claim_and_die(self) -> None:
        self.claim(3, start=2, tasks=TASKS, lease_ttl=GONE)

    @rule()
    def claim_and_live(self) -> None:
        self.claim(3, start=3, tasks=TASKS)

    @precondition(_some_suspect)
    @rule(random=_randoms)
    def claim_suspect(self, random: Random) -> None:
        """A suspect is claimed alone, by name."""
        suspect = self.some(random, lambda run: run.is_suspect)
        if suspect is not None:
            self.claim(1, start=1, tasks=TASKS, run_ids=(suspect.id,), lease_ttl=GONE)

    def claim(self, places: int, **fields: Any) -> None:
        asked = request(places, **({"lease_ttl": timedelta(hours=1)} | fields))
        # Gates may be stale by one step of maintenance; after it, nothing due is passed over.
        self.do(self.storage.open_gates(100))
        answer = self.do(self.storage.claim(asked))
        self.model.claim(asked, answer)

    @precondition(_some_lease)
    @rule(random=_randoms, well=st.booleans())
    def complete(self, random: Random, well: bool) -> None:
        run = self.some(random, lambda run: run.lease is not None and run.lease.attempt is not None)
        if run is not None:
            self.commit(success(run, {"well": True}) if well else failure(run))

    @precondition(_some_lease)
    @rule(random=_randoms, waits=st.booleans())
    def give_back(self, random: Random, waits: bool) -> None:
        run = self.some(random, lambda run: run.lease is not None)
        if run is None or run.lease is None:
            return
        signal = Awaiting(kind=AwaitingKind.SIGNAL, key="paid") if waits else None
        if run.lease.attempt is None:
            self.commit(step(run, decide_return(run, token_of(run), now())))
        else:
            self.commit(step(run, decide_release(run, token_of(run), now(), awaiting=signal)))

    @precondition(_some_run)
    @rule(random=_randoms, action=st.sampled_from(ACTIONS))
    def operate(self, random: Random, action: str) -> None:
        run = self.some(random, lambda run: True)
        if run is None:
            return
        # An operator may have read the run before it was renewed: no sequence tells.
        read = self.unrenewed.get(run.id, run)
        run = read if read.sequence == run.sequence else run
        try:
            events = _operate(run, action)
        except NotAllowed:
            return
        if events:
            self.commit(step(run, events))

    @precondition(_some_lease)
    @rule(random=_randoms)
    def renew(self, random: Random) -> None:
        run = self.some(random, lambda run: run.lease is not None)
        if run is None:
            return
        answer = self.do(self.storage.renew([Renewal(run.id, token_of(run), timedelta(hours=2))]))
        assert set(answer.renewed) == {run.id}
        self.unrenewed[run.id] = run
        self.model.renew(answer)

    @rule()
    def recover(self) -> None:
        moment = self.do(self.storage.now())
        lost = {r.id for r in self.model.runs.values() if r.lease and r.lease.expires_at <= moment}
        found = self.do(self.storage.attention(100))
        assert {run.id for run in found} == lost
        for run in found:
            assert run == self.model.runs[run.id]
            self.commit(step(run, decide_attention(run, moment)))

    @rule(random=_randoms)
    def repeat_or_come_too_late(self, random: Random) -> None:
        if self.old:
            item = random.choice(self.old)
            # A create that lost its key may well win today; that is another story.
            if item.commit_id in self.model.commit_ids or item.expected_sequence:
                self.commit(item)

    @rule(scope=st.sampled_from(LIMITED), most=_places)
    def limit(self, scope: LimitScope, most: int) -> None:
        name = {"queue": "mail", "task": "other", "key": TASK}[scope]
        held = sum(run.lease is not None for run in self.model.runs.values())
        most += held  # a limit set below what is held holds only from then on
        self.model.limits[scope, name] = most
        self.model.pace(scope, name, None)
        self.do(set_limit(self.storage, scope, name, most))

    @rule(scope=st.sampled_from(LIMITED), burst=_places)
    def pace(self, scope: LimitScope, burst: int) -> None:
        name = {"queue": "default", "task": TASK, "key": "other"}[scope]
        if burst == 0 or (scope, name) not in self.model.bursts:
            rate = Rate(burst, per=3600 * burst) if burst else None
            self.model.pace(scope, name, burst or None)
            self.do(set_limit(self.storage, scope, name, rate=rate))

    @rule(queue=st.sampled_from(["mail", "default"]))
    def pause_or_resume(self, queue: str) -> None:
        known = self.do(known_limit(self.storage, LimitScope.QUEUE, queue))
        limit = known or Limit(scope=LimitScope.QUEUE, name=queue)
        if queue in self.model.paused:
            changed = settings_of_limits.resume(limit)
        else:
            changed = settings_of_limits.pause(limit, OPERATOR, now())
        self.model.paused ^= {queue}
        self.do(put_limit(self.storage, changed))

    @rule(random=_randoms)
    def live(self, random: Random) -> None:
        actions: list[Callable[[], None]] = [
            lambda: self.create(_fields(random), random.random() < 0.2, random.random() < 0.3),
            self.claim_and_live,
            self.claim_and_die,
            lambda: self.complete(random, random.random() < 0.5),
            lambda: self.give_back(random, random.random() < 0.5),
            lambda: self.operate(random, random.choice(ACTIONS)),
            lambda: self.renew(random),
            self.recover,
            lambda: self.claim_suspect(random),
            lambda: self.repeat_or_come_too_late(random),
            lambda: self.limit(random.choice(LIMITED), random.randrange(3)),
            lambda: self.pace(random.choice(LIMITED), random.randrange(4)),
            lambda: self.pause_or_resume(random.choice(["mail", "default", "default"])),
        ]
        for _ in range(25):
            random.choice(actions)()

    @invariant()
    def storage_and_model_agree(self) -> None:
        assert self.do(self.storage.get(list(self.model.runs))) == self.model.runs
        page = self.do(self.storage.find(RunFilter(), limit=1000))
        assert {run.id for run in page.runs} == set(self.model.runs)

    @invariant()
    def every_history_replays(self) -> None:
        for run_id, run in self.model.runs.items():
            events = [recorded.event for recorded in self.do(self.storage.events(run_id))]
            assert events == self.model.events[run_id]
            assert check_run(run) + check_history(run, events) == []

    @invariant()
    def all_that_lies_beside_a_run_follows_from_it(self) -> None:
        assert self.do(self.storage.drift(list(self.model.runs))) == {}


def _without_events(outcome: Outcome) -> Outcome:
    """The model does not keep the records of a commit."""
    if isinstance(outcome, Committed):
        return Committed(outcome.run_id, outcome.sequence)
    return outcome


def _operate(run: Run, action: str) -> list[Event]:
    match action:
        case "cancel":
            return decide_cancel(run, OPERATOR, now(), "enough")
        case "pause":
            return decide_pause(run, OPERATOR, now())
        case "resume":
            return decide_resume(run, OPERATOR, now())
        case "wake":
            return decide_wake(run, OPERATOR, now())
        case _:
            return decide_reschedule(run, OPERATOR, now(), run_at=run.updated_at, priority=1)


def test_the_adapter_behaves_like_the_model(storage_url: str) -> None:
    machine = type("Machine", (StorageMachine,), {"url": storage_url})
    # A round trip costs more than a function call.
    most = settings().max_examples
    examples = most if storage_url.startswith("sqlite") else max(most // 4, 5)

    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=12, deadline=None)
    )
