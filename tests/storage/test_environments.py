"""What a commit may learn of, and do to, the runs of another environment: nothing."""

from __future__ import annotations

from msgspec.structs import replace

from builders import OPERATOR
from perdure.core.decide import decide_pause
from perdure.core.run.commit import Commit
from perdure.core.run.effects import DeadLetterClosed, DeadLetterStatus, Effects
from perdure.core.run.run import OnExhausted, Policy
from perdure.engine.runtime.ids import make_run_id
from perdure.errors import SequenceConflict
from perdure.storage.contract.runs import Outcome
from perdure.storage.contract.storage import Storage
from storage_kit import claim_one, create, failure, letters, new_run, now, reload, step, stored

ONCE = Policy(max_attempts=1, on_exhausted=OnExhausted.DEAD_LETTER)


def _with_id(commit: Commit, run_id: str) -> Commit:
    """The same commit for another run."""
    events = tuple(replace(event, run_id=run_id) for event in commit.events)
    return replace(commit, events=events, run=replace(commit.run, id=run_id))


def _in(environment: str, commit: Commit) -> Commit:
    """The same commit in another environment."""
    events = tuple(replace(event, environment=environment) for event in commit.events)
    return replace(commit, events=events, run=replace(commit.run, environment=environment))


def _at(commit: Commit, expected: int) -> Commit:
    run = replace(commit.run, sequence=expected + len(commit.events))
    return replace(commit, expected_sequence=expected, run=run)


def _text(outcome: Outcome, run_id: str) -> str:
    assert isinstance(outcome, SequenceConflict)
    return str(outcome).replace(run_id, "RUN")


async def test_a_step_of_another_environments_run_is_refused_as_if_there_were_none(
    storage: Storage,
) -> None:
    run = await create(storage, environment="theirs")
    foreign = _in("ours", step(run, decide_pause(run, OPERATOR, now(), "ours")))
    absent_id = make_run_id(now())

    for expected in (1, 2, 3):
        commit = _at(foreign, expected)
        [refused] = await storage.commit([commit])
        [absent] = await storage.commit([_with_id(commit, absent_id)])
        assert _text(refused, run.id) == _text(absent, absent_id)
    assert await reload(storage, run) == run


async def test_a_taken_id_of_another_environment_tells_nothing_about_its_run(
    storage: Storage,
) -> None:
    run = await create(storage, environment="theirs")
    [run] = await stored(storage, step(run, decide_pause(run, OPERATOR, now(), "hold on")))

    [refused] = await storage.commit([_with_id(new_run(environment="ours"), run.id)])

    assert isinstance(refused, SequenceConflict)
    assert refused.actual is None
    assert await reload(storage, run) == run


async def test_a_commit_closes_no_dead_letter_of_another_environment(storage: Storage) -> None:
    await create(storage, environment="theirs", policy=ONCE)
    [run] = await stored(storage, failure(await claim_one(storage, environment="theirs")))
    closed = DeadLetterClosed(
        run_id=run.id, status=DeadLetterStatus.REPLAYED, closed_at=now(), closed_by=OPERATOR
    )
    commit = replace(new_run(environment="ours"), effects=Effects(dead_letter_closed=closed))

    [refused] = await storage.commit([commit])

    assert isinstance(refused, SequenceConflict)
    [letter] = await letters(storage, environment="theirs")
    assert letter.closed_at is None
