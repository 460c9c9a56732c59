"""The first retry or rerun of a run owns the key that names its original."""

from __future__ import annotations

from typing import Any

import pytest

from builders import OPERATOR, a_run, after, run_id
from perdure.core.decide import decide_cancel, decide_rerun, decide_retry
from perdure.core.run.commit import prepare_commit
from perdure.core.run.effects import SUCCESSOR_KEPT, KeyFreed, standing_keys, successor_key
from perdure.core.run.lifecycle import Status

FAILED = a_run(Status.FAILED)
KEY = successor_key(FAILED.environment, FAILED.id)


@pytest.mark.parametrize("decide", [decide_retry, decide_rerun])
def test_the_first_one_takes_the_key(decide: Any) -> None:
    commit = prepare_commit(None, decide(FAILED, run_id(7), OPERATOR, after(9)), "c")

    assert commit.effects.keys_taken == (KEY,)
    assert standing_keys(commit.run) == (KEY,)


@pytest.mark.parametrize("decide", [decide_retry, decide_rerun])
def test_one_that_is_made_again_takes_none(decide: Any) -> None:
    commit = prepare_commit(None, decide(FAILED, run_id(7), OPERATOR, after(9), again=True), "c")

    assert commit.effects.keys_taken == ()
    assert commit.run.source.again


def test_the_key_is_free_a_year_after_its_owner_has_ended() -> None:
    retry = prepare_commit(None, decide_retry(FAILED, run_id(7), OPERATOR, after(9)), "c").run
    ended = prepare_commit(retry, decide_cancel(retry, OPERATOR, after(20)), "d")

    assert ended.effects.keys_freed == (KeyFreed(KEY, after(20) + SUCCESSOR_KEPT),)
    assert standing_keys(ended.run) == ()
