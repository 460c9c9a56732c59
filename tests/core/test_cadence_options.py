"""Which options a cadence names, and what an update keeps of the one before."""

from __future__ import annotations

from datetime import UTC, datetime

from perdure.core.schedule import Cron, at, cron, every, merge_cadence, named_options

END = datetime(2031, 1, 1, tzinfo=UTC)
OLD = cron("0 3 * * *", tz="Europe/Berlin", end=END, jitter=60)


def test_a_cadence_names_the_options_that_were_given() -> None:
    assert named_options(cron("0 3 * * *", tz="UTC", end=None)) == {"tz", "end"}
    assert named_options(every(60)) == frozenset()


def test_a_cadence_that_was_not_made_from_options_names_all_of_them() -> None:
    stored = Cron(expression="0 3 * * *")

    assert named_options(stored) == {"tz", "gap", "fold", "start", "end", "jitter"}
    assert merge_cadence(stored, OLD) == stored


def test_options_that_are_not_named_are_kept() -> None:
    merged = merge_cadence(cron("0 4 * * *", jitter=0), OLD)

    assert merged == cron("0 4 * * *", tz="Europe/Berlin", end=END)


def test_a_cadence_of_another_kind_keeps_nothing() -> None:
    assert merge_cadence(at(END), OLD) == at(END)
