"""Ids that nobody else makes, not even a forked child."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime, timedelta

import pytest

from perdure.core.run.run import is_run_id
from perdure.engine.runtime.ids import POOL, DerivedIds, Entropy, Ids, make_run_id

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_run_ids_sort_by_when_they_were_made() -> None:
    made = [make_run_id(NOON + timedelta(microseconds=10 * n)) for n in range(1000)]

    assert made == sorted(made)
    assert all(is_run_id(run_id) for run_id in made)


def test_run_ids_of_one_instant_sort_by_which_was_made_first() -> None:
    ids = Ids()
    made = [ids.run_id(NOON) for _ in range(1000)]

    assert made == sorted(set(made))
    assert all(is_run_id(run_id) for run_id in made)


def test_run_ids_of_one_instant_have_room_even_above_the_highest() -> None:
    ids = Ids(lambda count: b"\xff" * count)
    made = [ids.run_id(NOON) for _ in range(3)]

    assert made == sorted(set(made))
    assert all(is_run_id(run_id) for run_id in made)


def test_an_order_derives_the_ids_that_it_always_derived() -> None:
    """An order that one version of the code began is carried on by another."""
    digest = hashlib.sha256(b"run_a run_b").digest()

    derived = DerivedIds(NOON, "run_a").derive("run_b")

    assert derived == make_run_id(NOON, lambda count: digest[:count])
    assert is_run_id(derived)


def test_tokens_come_as_many_as_were_asked_for() -> None:
    made = Ids().tokens(100)

    assert len(set(made)) == 100
    assert {len(token) for token in made} == {32}


def test_no_id_is_made_twice_over_many_pools() -> None:
    ids = Ids(Entropy())
    made = [ids.token() for _ in range(3 * POOL // 16 + 1)]

    assert len(set(made)) == len(made)


def test_more_than_a_pool_can_be_asked_for() -> None:
    assert len(Entropy()(3 * POOL)) == 3 * POOL


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_forked_child_makes_ids_of_its_own() -> None:
    entropy = Entropy()
    entropy(16)  # now there is a pool to be inherited
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, entropy(16))
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(read, 16) != entropy(16)
