"""Every interleaving of small histories keeps the invariants; and a world with a mistake in it
does not, so the search would have found one."""

import pytest

from perdure.core.run.lifecycle import Status
from search import Bounds, Search, Violation
from search_model import RECORDED, REDELIVERED, RETRIED, Fault, Role
from untraced import untraced

# What to search, how many distinct states that must be at least, and what it must come by.
RACES = {
    "a retried run, two decisions under way": (
        Bounds(runs=(RETRIED,), max_sequence=5, horizon=3, in_flight=2),
        250_000,
        {Status.RETRYING, Status.WAITING, Status.RELEASED, Status.CANCELLED, Status.EXPIRED},
    ),
    "a redelivered run, two decisions under way": (
        Bounds(runs=(REDELIVERED,), max_sequence=6, horizon=3, in_flight=2),
        100_000,
        {Status.QUEUED, Status.SCHEDULED, Status.FAILED, Status.PAUSED},
    ),
    "a run with recorded heartbeats, two decisions under way": (
        Bounds(runs=(RECORDED,), max_sequence=5, horizon=3, in_flight=2),
        200_000,
        {Status.RUNNING, Status.FAILED, Status.CANCELLATION_REQUESTED},
    ),
    "two runs, one decision under way": (
        Bounds(runs=(RETRIED, REDELIVERED), max_sequence=3, horizon=3, in_flight=1),
        150_000,
        {Status.CLAIMED, Status.RUNNING, Status.CANCELLED, Status.EXPIRED},
    ),
    "a whole life, one decision under way": (
        Bounds(runs=(RETRIED,), max_sequence=7, horizon=3, in_flight=1),
        50_000,
        set(Status) - {Status.SKIPPED},
    ),
}


@pytest.mark.parametrize("name", RACES)
def test_every_reachable_state_keeps_the_invariants(name: str) -> None:
    bounds, at_least, statuses = RACES[name]
    search = Search(bounds)

    with untraced():
        states = search.run()

    assert states >= at_least
    assert search.statuses.keys() >= statuses
    assert search.refused[Role.MAINTENANCE] > 0 or RECORDED in bounds.runs


def test_the_search_meets_refusals_of_every_actor() -> None:
    search = Search(Bounds(max_sequence=4, horizon=2, in_flight=2))

    with untraced():
        search.run()

    assert set(search.refused) == set(Role)


# The smallest bounds in which each mistake shows, and the words that give it away.
_ONE = Bounds(max_sequence=6, horizon=3, in_flight=1)
_TWO = Bounds(max_sequence=5, horizon=3, in_flight=2)
MISTAKES = {
    Fault.TOKEN_IGNORED: (_ONE, "a worker wrote for another's lease"),
    Fault.SNAPSHOT_TRUSTED: (_ONE, "a live lease was taken"),
    Fault.RECOVERY_UNGUARDED: (_TWO, "sequence or time went back"),
    Fault.OUTCOME_UNGUARDED: (_TWO, "a live lease was taken"),
    Fault.EXPIRY_WRITTEN_BACK: (_ONE, "a renewal was undone"),
    Fault.RENEWAL_UNGUARDED: (_ONE, "renewed by a stranger"),
    Fault.CLAIMS_FORGOTTEN: (_ONE, "stranded"),
}


@pytest.mark.parametrize("fault", Fault)
def test_a_mistake_in_the_world_is_found(fault: Fault) -> None:
    bounds, problem = MISTAKES[fault]

    with untraced(), pytest.raises(Violation, match=problem):
        Search(bounds, frozenset({fault})).run()


def test_a_violation_tells_the_way_to_it() -> None:
    with pytest.raises(Violation) as found:
        Search(_ONE, frozenset({Fault.SNAPSHOT_TRUSTED})).run()

    trail = str(found.value).splitlines()
    assert trail[1].endswith("the empty store -> ")
    assert "renews w1.1 -> claimed" in trail[-1]
