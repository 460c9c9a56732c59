"""A result is checked against the return annotation, by the rules of payloads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from enum import StrEnum
from typing import Any, TypedDict

import msgspec
import pytest

import raw
from perdure import App, Context
from perdure.core.run.failure import FailureKind
from perdure.core.run.lifecycle import Status
from perdure.errors import RunFailed
from waiting import MAX_WAIT_S


class Colour(StrEnum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Order(msgspec.Struct):
    id: int
    points: list[Point]


class Person(TypedDict):
    name: str


def returning(value: Any, annotation: Any) -> Callable[[], Any]:
    def handler() -> Any:
        return value

    handler.__annotations__["return"] = annotation
    return handler


async def _run_of(app: App, function: Callable[[], Any]) -> Any:
    task = app.task(function)
    async with app.run_all(concurrency=1):
        run = await task.trigger()
        with suppress(RunFailed):
            await run.result(MAX_WAIT_S)
        return await app.runs.get(run)


@pytest.mark.parametrize(
    ("annotation", "value", "where"),
    [
        (int, "five", "result"),
        (int, None, "result"),
        (None, 5, "result"),
        (list[int], [1, "two"], "result[1]"),
        (Point, Point(1, "two"), "result.y"),  # type: ignore[arg-type]  # that is the point
        (Order, Order(1, [Point(1, 2), Point(3, None)]), "result.points[1].y"),  # type: ignore[arg-type]  # likewise
        (Person, {"name": "Ada", "age": 36}, "result.age"),
        (Colour, "blue", "result"),
        (tuple[int, int], (1, 2, 3), "result"),
        (dict[str, list[int]], {"a": [1], "b": [2, "three"]}, "result.b[1]"),
    ],
)
async def test_a_result_that_does_not_fit_is_a_failure_that_names_the_value(
    app: App, annotation: Any, value: Any, where: str
) -> None:
    run = await _run_of(app, returning(value, annotation))

    assert run.status is Status.FAILED
    assert (run.failure.kind, run.failure.type) == (FailureKind.ERROR, "ResultMismatch")
    assert not run.failure.retryable
    assert run.counters.attempts == 1
    assert f"handler, {where}: " in run.failure.message


@pytest.mark.parametrize(
    ("annotation", "value", "stored"),
    [
        (Any, "five", "five"),
        (object, "five", "five"),
        (float, 5, 5),
        (int | None, None, None),
        (None, None, None),
        (Colour, Colour.RED, "red"),
        (Point, Point(1, 2), {"x": 1, "y": 2}),
        (Point, {"x": 1, "y": 2}, {"x": 1, "y": 2}),
        (set[int], {1}, [1]),
        (dict[int, str], {1: "one"}, {"1": "one"}),
        (Decimal, Decimal("1.5"), "1.5"),
    ],
)
async def test_what_fits_succeeds(
    sqlite_storage_url: str, annotation: Any, value: Any, stored: Any
) -> None:
    run = await _run_of(App(sqlite_storage_url), returning(value, annotation))

    assert (run.status, run.result) == (Status.SUCCEEDED, stored)


async def test_a_function_without_an_annotation_may_return_anything(
    sqlite_storage_url: str,
) -> None:
    def handler():  # type: ignore[no-untyped-def]  # that is the point
        return {"any": ["thing"]}

    run = await _run_of(App(sqlite_storage_url), handler)

    assert run.result == {"any": ["thing"]}


def five_in_a_process() -> int:
    return "five"  # type: ignore[return-value]  # that is the point


async def five_on_the_loop() -> int:
    return "five"  # type: ignore[return-value]  # likewise


@pytest.mark.parametrize(
    ("function", "executor"), [(five_in_a_process, "process"), (five_on_the_loop, "async")]
)
async def test_a_result_is_checked_wherever_the_handler_runs(
    sqlite_storage_url: str, function: Callable[[], Any], executor: str
) -> None:
    app = App(sqlite_storage_url)
    task = app.task(executor=executor)(function)
    async with app.run_all(concurrency=1):
        run = await task.trigger()
        with pytest.raises(RunFailed, match="result: Expected `int`, got `str`"):
            await run.result(MAX_WAIT_S)


async def test_a_mismatch_rolls_the_handlers_transaction_back(app: App, storage_url: str) -> None:
    raw.execute(storage_url, "CREATE TABLE effects (id integer)")

    @app.task
    async def wrong(ctx: Context) -> int:
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO effects VALUES (1)")
        return "five"  # type: ignore[return-value]  # that is the point

    async with app.run_all(concurrency=1):
        run = await wrong.trigger()
        with pytest.raises(RunFailed, match="ResultMismatch"):
            await run.result(MAX_WAIT_S)

    assert raw.execute(storage_url, "SELECT * FROM effects") == [[]]
