"""The seed systems' words for our statuses."""

from __future__ import annotations

import pytest

from builders import a_failure, a_run, dead_lettered, failed, then
from perdure.core.run.failure import FailureKind
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.core.seed_terms import ALIASES, WORDS, Seed, StatusFilter, resolve_status, seed_word
from perdure.errors import InvalidInput


def ended_by(kind: FailureKind, *, dead: bool = False) -> Run:
    build = dead_lettered if dead else failed
    return then(a_run(Status.RUNNING), build(failure=a_failure(kind=kind)))


@pytest.mark.parametrize("status", Status)
def test_our_own_words_mean_themselves(status: Status) -> None:
    assert resolve_status(status.value) == StatusFilter((status,))


@pytest.mark.parametrize("word", ALIASES)
def test_an_alias_means_what_the_table_says_and_hides_no_status(word: str) -> None:
    assert resolve_status(word) == ALIASES[word]
    assert word not in list(Status)


def test_a_kind_of_failure_finds_failed_and_dead_lettered_runs() -> None:
    found = resolve_status("timed_out")

    assert set(found.statuses) == {Status.FAILED, Status.DEAD_LETTERED}
    assert found.kinds == (FailureKind.TIMEOUT,)


def test_an_unknown_word_is_refused_with_the_list_of_what_there_is() -> None:
    with pytest.raises(InvalidInput, match="'lost' is not a status; there are: ") as caught:
        resolve_status("lost")

    assert "retrying" in caught.value.problem
    assert "timed_out" not in caught.value.problem


@pytest.mark.parametrize("seed", Seed)
@pytest.mark.parametrize("status", Status)
def test_every_status_has_the_seeds_word_or_none(seed: Seed, status: Status) -> None:
    assert seed_word(seed, a_run(status)) == WORDS[status][list(Seed).index(seed)]


def test_every_word_of_a_seed_can_be_filtered_by() -> None:
    for words in WORDS.values():
        for word in filter(None, words):
            assert resolve_status(word).statuses


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (FailureKind.ERROR, ["failed", "failed", "failed", "failed"]),
        (FailureKind.TIMEOUT, ["failed", "timed_out", "timeout", "failed"]),
        (FailureKind.CRASH, ["failed", "crashed", "abandoned", "failed"]),
        (FailureKind.SYSTEM, ["failed", "system_failed", "failed", "failed"]),
        (FailureKind.REJECTED, ["failed", "failed", "failed", "failed"]),
    ],
)
def test_some_seeds_name_a_failure_by_its_kind(kind: FailureKind, words: list[str]) -> None:
    assert [seed_word(seed, ended_by(kind)) for seed in Seed] == words


def test_a_dead_letter_is_one_whatever_its_kind() -> None:
    words = {seed_word(Seed.STRAIT, ended_by(kind, dead=True)) for kind in FailureKind}

    assert words == {"dead_letter"}


def test_a_misspelt_status_is_answered_with_the_nearest() -> None:
    with pytest.raises(InvalidInput, match=r"there are: .*; did you mean failed\?$"):
        resolve_status("faild")
    with pytest.raises(InvalidInput) as unlike_any:
        resolve_status("zzz")
    assert "did you mean" not in str(unlike_any.value)
