"""Why a run is there at all."""

from __future__ import annotations

from typing import Any

import pytest

from builders import OPERATOR, a_run, run_id
from perdure.core.explain.origin import given_by, origin_of, told_origin
from perdure.core.run.run import Source, SourceType
from scheduling import NINE, an_occurrence

FIRST = run_id(1)


@pytest.mark.parametrize(
    ("source", "words", "given"),
    [
        ({}, "schedule digest, for 2026-03-02T09:00:00Z", None),
        (
            {"nominal_time": None, "reason": "customer asked"},
            "schedule digest, by hand: customer asked (grace)",
            "by hand: customer asked (grace)",
        ),
        (
            {"reason": "outage"},
            "schedule digest, backfilled for 2026-03-02T09:00:00Z: outage (grace)",
            "backfilled for 2026-03-02T09:00:00Z: outage (grace)",
        ),
        (
            {"type": SourceType.RERUN, "run_id": FIRST, "nominal_time": None, "reason": "again"},
            f"rerun of {FIRST}: again (grace)",
            f"rerun of {FIRST}: again (grace)",
        ),
        (
            {"type": SourceType.MANUAL_RETRY, "run_id": FIRST, "nominal_time": None},
            f"retry of {FIRST}",
            None,
        ),
        ({"type": SourceType.TRIGGER, "schedule_id": None, "nominal_time": None}, None, None),
    ],
)
def test_it_is_told_in_a_few_words(
    source: dict[str, Any], words: str | None, given: str | None
) -> None:
    made = an_occurrence(**source).source
    run = a_run(source=made, actor=OPERATOR)

    assert (origin_of(run), given_by(run)) == (words, given)
    assert told_origin(made, OPERATOR) == words


def test_a_plain_trigger_needs_no_words() -> None:
    assert told_origin(Source(), OPERATOR) is None
    assert NINE.isoformat() not in str(origin_of(a_run()))
