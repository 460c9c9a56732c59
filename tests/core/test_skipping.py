"""Why a time was skipped: what was kept with the decision, in words."""

from __future__ import annotations

from datetime import timedelta

import pytest

from builders import OPERATOR
from perdure.core.run.run import SYSTEM
from perdure.core.run.skip import (
    Evidence,
    Pause,
    SkipReason,
    Touch,
    decode_evidence,
    encode_evidence,
    told_skip,
    told_touch,
)
from perdure.core.text import clock_in, in_words
from scheduling import HOUR, MINUTE, NINE, SECOND

TEN = NINE + HOUR
PAUSE = Pause(since=NINE - HOUR, until=NINE + MINUTE, by=OPERATOR, reason="holiday")
PAUSED = "paused from 2026-03-02T08:00:00Z until 2026-03-02T09:01:00Z by grace (holiday)"


@pytest.mark.parametrize(
    ("reason", "evidence", "sentence"),
    [
        (
            SkipReason.MISFIRED,
            Evidence(misfire="run_once", misfire_grace=MINUTE, newer=TEN),
            (
                "it was decided at 2026-03-02T10:00:00Z, later than its grace of 1 min allows, and "
                "the misfire policy was run_once: that of 2026-03-02T10:00:00Z was to run instead"
            ),
        ),
        (
            SkipReason.PAUSED,
            Evidence(misfire="skip", pause=PAUSE),
            f"the schedule was {PAUSED}, and the misfire policy was skip",
        ),
        (
            SkipReason.TOO_OLD,
            Evidence(catch_up_age=2 * HOUR, pause=PAUSE),
            (
                f"it was missed while the schedule was {PAUSED}, and lay further back than "
                "catch_up_age, 2 h, when that was decided at 2026-03-02T10:00:00Z"
            ),
        ),
        (
            SkipReason.OVER_LIMIT,
            Evidence(catch_up_limit=7),
            "it was missed, and the newest 7 were caught up with instead",
        ),
        (
            SkipReason.OVERLAP,
            Evidence(overlap="skip", slots=2, held_by=("run_1", "run_2")),
            "no slot was free (of 2; held by run_1, run_2), and the overlap policy was skip",
        ),
        (
            SkipReason.SUPERSEDED,
            Evidence(overlap="replace", newer=TEN),
            (
                "the occurrence of 2026-03-02T10:00:00Z came before it had begun, and the overlap "
                "policy was replace"
            ),
        ),
        (
            SkipReason.CHANGED,
            Evidence(touch=Touch(by=OPERATOR, at=TEN), unknown_task="mail"),
            (
                "it was missed while nobody knew its task mail, and the cadence was changed at "
                "2026-03-02T10:00:00Z by grace before that was over"
            ),
        ),
        (
            SkipReason.DELETED,
            Evidence(touch=Touch(by=OPERATOR, at=TEN, reason="not needed")),
            (
                "it was missed, and the schedule was deleted at 2026-03-02T10:00:00Z by grace (not "
                "needed) before that was over"
            ),
        ),
        (SkipReason.DISABLED, None, "the schedule was disabled, until 2026-03-02T10:00:00Z"),
        (
            SkipReason.DISABLED,
            Evidence(touch=Touch(by=OPERATOR, at=TEN - HOUR, reason="too loud")),
            (
                "the schedule was disabled, until 2026-03-02T10:00:00Z; before that it was last "
                "changed at 2026-03-02T09:00:00Z by grace (too loud)"
            ),
        ),
    ],
)
def test_a_skip_is_told_by_what_was_kept_with_it(
    reason: SkipReason, evidence: Evidence | None, sentence: str
) -> None:
    assert told_skip(reason, evidence, TEN) == sentence


@pytest.mark.parametrize("reason", [*SkipReason, "somebody's own words", None])
def test_what_was_not_kept_is_not_told(reason: str | None) -> None:
    sentence = told_skip(reason, None, TEN)

    assert "None" not in sentence or reason is None
    assert "policy" not in sentence


def test_somebody_without_a_name_is_told_by_what_he_is() -> None:
    assert told_touch("paused at", Touch(by=SYSTEM, at=NINE)) == (
        "paused at 2026-03-02T09:00:00Z by the system"
    )


def test_evidence_survives_being_stored_and_what_cannot_be_read_is_none() -> None:
    evidence = Evidence(misfire="skip", misfire_grace=MINUTE, pause=PAUSE, held_by=("run_1",))

    assert decode_evidence(encode_evidence(evidence)) == evidence
    assert decode_evidence("{") is None


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (timedelta(0), "0 s"),
        (SECOND, "1 s"),
        (-5 * SECOND, "-5 s"),
        (1.5 * MINUTE, "1 min 30 s"),
        (26 * HOUR, "1 day 2 h"),
        (timedelta(days=3650), "10 years"),
        (timedelta(days=367, microseconds=1500), "1 year 2 days 0.0015 s"),
    ],
)
def test_a_length_is_told_in_words(length: timedelta, words: str) -> None:
    assert in_words(length) == words


def test_a_clock_on_the_wall_says_which_instant_it_means() -> None:
    assert clock_in("UTC", NINE) == "2026-03-02T09:00:00Z"
    assert clock_in("Asia/Tokyo", NINE + SECOND) == (
        "2026-03-02 18:00:01 Asia/Tokyo (2026-03-02T09:00:01Z)"
    )
