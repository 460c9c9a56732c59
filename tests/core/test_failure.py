"""Fingerprints tell equal failures; error text is made safe to store."""

from __future__ import annotations

import pytest

from builders import a_failure
from perdure.core.run.failure import (
    CRASH,
    CRASH_MESSAGE,
    MAX_MESSAGE,
    FailureKind,
    clean_text,
    fingerprint,
    make_failure,
)

SAME = [
    ("user 17 not found", "user 99812 not found"),
    ("object at 0x7f01ab", "object at 0xFFFF0000"),
    (
        "run 0190f3a2-7c1e-7d2a-9b3c-1a2b3c4d5e6f lost",
        "run 0190F3A2-0000-7d2a-9b3c-ffffffffffff lost",
    ),
    ("commit 9fceb02d0ae598e95dc970b74767f19372d61af8", "commit " + "a" * 40),
    ("at 12:01:59 on 2026-03-01", "at 1:2:3 on 1999-12-31"),
    ("took 1.5 s", "took 17 s"),
    ("line one\n\t two", "line one two"),
    ("Timeout", "timeout"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_failures_that_differ_only_in_noise_are_equal(one: str, other: str) -> None:
    assert a_failure(one).fingerprint == a_failure(other).fingerprint


def test_failures_of_another_kind_type_or_message_differ() -> None:
    prints = {
        a_failure("boom").fingerprint,
        a_failure("bang").fingerprint,
        a_failure("boom", kind=FailureKind.TIMEOUT).fingerprint,
        a_failure("boom", type="KeyError").fingerprint,
    }

    assert len(prints) == 4


def test_a_fingerprint_is_the_same_for_ever() -> None:
    assert fingerprint(FailureKind.ERROR, "ValueError", "user 17 not found") == "45782bc628bd7d34"


def test_a_lost_lease_says_exactly_this() -> None:
    assert CRASH.message == CRASH_MESSAGE == "worker lease expired during execution"
    assert (CRASH.kind, CRASH.retryable) == (FailureKind.CRASH, True)


def test_text_without_trouble_is_kept() -> None:
    assert clean_text("naïve 你好 🎉\n\ttab") == "naïve 你好 🎉\n\ttab"


def test_lone_surrogates_and_nul_are_replaced() -> None:
    assert clean_text("a\ud800b") == "a?b"
    assert clean_text("a\x00b") == "a\ufffdb"


def test_endless_text_is_cut_and_says_by_how_much() -> None:
    assert clean_text("x" * MAX_MESSAGE) == "x" * MAX_MESSAGE
    assert clean_text("x" * (MAX_MESSAGE + 5)) == "x" * MAX_MESSAGE + "… (5 more characters)"


def test_every_text_of_a_failure_is_made_safe() -> None:
    failure = make_failure(
        FailureKind.ERROR,
        type="Bad\ud800",
        message="x\x00" * MAX_MESSAGE,
        traceback="File\udfff",
        retryable=False,
        details={"code": 7},
    )

    assert (failure.type, failure.traceback) == ("Bad?", "File?")
    assert failure.message.endswith(f"… ({MAX_MESSAGE} more characters)")
    assert (failure.retryable, failure.details) == (False, {"code": 7})


def test_a_failure_needs_no_traceback() -> None:
    assert a_failure().traceback is None


def test_details_that_json_cannot_keep_do_not_cost_the_failure() -> None:
    failure = make_failure(FailureKind.ERROR, type="E", message="m", details={"x": float("nan")})

    assert failure.details is not None
    assert "cannot be kept as JSON" in failure.details["dropped"]
