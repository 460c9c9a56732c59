"""Our histories, told in the words of the systems we learnt from: every step is one they
published or one we declared, with a reason; and no declaration is idle."""

from collections.abc import Iterable
from itertools import pairwise

import pytest

from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.core.seed_terms import Seed, seed_word
from seeds import NEW, SEEDS, Pair
from untraced import untraced
from walks import walk

WALKS = 5_000


@pytest.fixture(scope="module")
def lives() -> list[list[Run]]:
    with untraced():
        return [walk(seed) for seed in range(WALKS)]


@pytest.fixture(scope="module")
def seen(lives: list[list[Run]]) -> dict[Seed, set[Pair]]:
    return {seed: {pair for life in lives for pair in told(seed, life)} for seed in Seed}


def told(seed: Seed, life: Iterable[Run]) -> Iterable[Pair]:
    """A life's steps. A status without a word is left out; equal neighbours count once."""
    words = [NEW]
    for run in life:
        word = seed_word(seed, run)
        if word is not None and word != words[-1]:
            words.append(word)
    return pairwise(words)


def test_the_walks_come_by_every_status(lives: list[list[Run]]) -> None:
    assert {run.status for life in lives for run in life} == set(Status)


@pytest.mark.parametrize("seed", Seed)
def test_every_step_is_published_or_declared(seed: Seed, seen: dict[Seed, set[Pair]]) -> None:
    table = SEEDS[seed]

    assert seen[seed] - table.published - table.differences.keys() == set()


@pytest.mark.parametrize("seed", Seed)
def test_every_published_step_is_taken_or_declared_unreachable(
    seed: Seed, seen: dict[Seed, set[Pair]]
) -> None:
    table = SEEDS[seed]

    assert table.published - seen[seed] - table.unreachable.keys() == set()


@pytest.mark.parametrize("seed", Seed)
def test_every_declared_difference_occurs(seed: Seed, seen: dict[Seed, set[Pair]]) -> None:
    assert SEEDS[seed].differences.keys() - seen[seed] == set()


@pytest.mark.parametrize("seed", Seed)
def test_nothing_declared_unreachable_occurs(seed: Seed, seen: dict[Seed, set[Pair]]) -> None:
    assert SEEDS[seed].unreachable.keys() & seen[seed] == set()


@pytest.mark.parametrize("seed", Seed)
def test_the_lists_declare_what_the_table_says_and_no_more(seed: Seed) -> None:
    table = SEEDS[seed]

    assert table.differences.keys() & table.published == set()
    assert table.unreachable.keys() <= table.published


def test_the_differences_the_design_promised_are_declared() -> None:
    promised = {
        Seed.STRAIT: {
            ("delayed", "dequeued"),
            ("queued", "delayed"),
            ("dequeued", "delayed"),
            ("waiting", "queued"),
            ("waiting", "dequeued"),
        },
        Seed.WAKEPLANE: {("running", "retry_scheduled"), ("running", "pending")},
        Seed.ATTUNE: {
            ("scheduled", "requested"),
            ("running", "requested"),
            ("running", "scheduled"),
            ("scheduled", "canceling"),
        },
    }

    assert all(SEEDS[seed].differences.keys() >= pairs for seed, pairs in promised.items())
    assert ("dead_letter", "queued") in SEEDS[Seed.STRAIT].unreachable
