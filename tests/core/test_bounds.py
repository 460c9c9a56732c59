"""How much an event may carry: what is too large or too deep is refused before it is stored."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from builders import a_failure, a_run, cancelled, failed, released, succeeded
from perdure.core.json_text import MAX_DEPTH
from perdure.core.run.bounds import MAX_OUTPUT_BYTES, check_bounds
from perdure.core.run.commit import prepare_commit
from perdure.core.run.events import Event
from perdure.core.run.failure import MAX_MESSAGE
from perdure.core.run.lifecycle import Status
from perdure.errors import InvalidInput


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"in": value}
    return value


TOO_MUCH = {
    "deep": nested(MAX_DEPTH),
    "very deep": nested(5000),
    "large": {"text": "x" * MAX_OUTPUT_BYTES},
}


@pytest.mark.parametrize("value", TOO_MUCH.values(), ids=TOO_MUCH)
@pytest.mark.parametrize("field", ["output", "execution_trace", "meta"])
@pytest.mark.parametrize("make", [succeeded, failed, released, cancelled])
def test_an_event_that_carries_too_much_is_refused(
    make: Any, field: str, value: dict[str, Any]
) -> None:
    event: Event = make(**{field: value})

    with pytest.raises(InvalidInput, match=field):
        check_bounds(event)


@pytest.mark.parametrize("field", ["output", "meta"])
def test_an_event_that_carries_what_is_no_json_is_refused(field: str) -> None:
    fields: dict[str, Any] = {field: {"number": float("nan")}}

    with pytest.raises(InvalidInput, match=field):
        check_bounds(succeeded(**fields))


@pytest.mark.parametrize("value", TOO_MUCH.values(), ids=TOO_MUCH)
def test_the_details_of_a_failure_are_bounded(value: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="details"):
        check_bounds(failed(failure=replace(a_failure(), details=value)))


@pytest.mark.parametrize("field", ["type", "message", "traceback", "fingerprint"])
def test_the_texts_of_a_failure_are_bounded(field: str) -> None:
    check_bounds(failed(failure=a_failure("x" * 2 * MAX_MESSAGE)))

    endless = replace(a_failure(), **{field: "x" * 2 * MAX_MESSAGE})
    with pytest.raises(InvalidInput, match=field):
        check_bounds(failed(failure=endless))


def test_what_is_usual_passes() -> None:
    for make in (succeeded, failed, released, cancelled):
        event: Event = make(output=nested(MAX_DEPTH - 1), execution_trace={"total_ms": 1.5})
        check_bounds(event)
    check_bounds(succeeded(execution_trace={"laps": [1, 2], "total_ms": 3.5}))


def test_no_commit_is_prepared_for_an_event_that_carries_too_much() -> None:
    with pytest.raises(InvalidInput, match="output"):
        prepare_commit(a_run(Status.RUNNING), [succeeded(output=nested(5000))], "commit-1")
