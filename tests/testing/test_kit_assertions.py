"""The kit's assertions hold when they should, and fail with the right words when they should."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY
from uuid import UUID

import msgspec
import pytest

from perdure import Context, Retry
from perdure.errors import InvalidInput, RunNotFound
from perdure.testing import Kit


class Address(msgspec.Struct):
    city: str
    street: str = ""


@pytest.fixture
def kit(perdure_kit: Kit) -> Kit:
    @perdure_kit.app.task
    async def welcome(user_id: int, locale: str = "en", extra: dict[str, int] | None = None) -> str:
        return f"{locale} {user_id}"

    @perdure_kit.app.task
    def ship(order: UUID, to: Address) -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC)

    @perdure_kit.app.task(retry=Retry(max_attempts=2, initial=60, jitter=0))
    async def fails(ctx: Context, message: str = "no") -> None:
        raise ValueError(message)

    return perdure_kit


def failing(kit: Kit, **arguments: object) -> str:
    """What `assert_triggered` says."""
    with pytest.raises(AssertionError) as failed:
        kit.assert_triggered("welcome", **arguments)  # type: ignore[arg-type]  # by the tests
    return str(failed.value)


def welcome(kit: Kit, *arguments: object, **options: Any) -> str:
    return kit.app.tasks["welcome"].options(**options).trigger_sync(*arguments).id


def test_a_triggered_task_is_found_by_what_is_named_of_its_payload(kit: Kit) -> None:
    welcome(kit, 1, "de")
    wanted = welcome(kit, 2, "de", {"a": 1, "b": 2})

    assert kit.assert_triggered("welcome").payload["user_id"] == 1
    assert kit.assert_triggered("welcome", {"user_id": 2}).id == wanted
    assert kit.assert_triggered("welcome", {"extra": {"b": 2}}).id == wanted
    kit.assert_triggered("welcome", {"user_id": ANY, "locale": "de"}, times=2)


def test_typed_arguments_are_compared_as_they_are(kit: Kit) -> None:
    ship, order = kit.app.tasks["ship"], UUID(int=7)
    ship.trigger_sync(order, Address("Ulm"))

    kit.assert_triggered(ship, {"order": order, "to": Address("Ulm")}, exactly=True)
    kit.assert_triggered(ship, {"order": str(order), "to": {"city": "Ulm"}})
    with pytest.raises(AssertionError, match=r"to: wanted Address\(city='Bonn', street=''\), got"):
        kit.assert_triggered(ship, {"to": Address("Bonn")})


def test_options_are_compared(kit: Kit) -> None:
    at = kit.now + timedelta(hours=1)
    welcome(kit, 1, run_at=at, priority=3, tags={"team": "a", "tier": "b"}, ttl=60)
    welcome(kit, 2, delay=90, idempotency_key="w2", singleton_key="s", concurrency_key="c")

    kit.assert_triggered("welcome", run_at=at, priority=3, tags={"team": "a"}, ttl=60, delay=3600)
    kit.assert_triggered(
        "welcome", delay=90, idempotency_key="w2", singleton_key="s", concurrency_key="c"
    )


def test_an_option_is_what_was_asked_for_even_after_a_retry(kit: Kit) -> None:
    kit.app.tasks["fails"].options(delay=30).trigger_sync()
    kit.advance(40)

    kit.assert_triggered("fails", delay=30)


def test_nothing_at_all(kit: Kit) -> None:
    assert failing(kit) == "welcome was not triggered at all. Nothing was."


def test_other_things_instead(kit: Kit) -> None:
    for _ in range(2):
        kit.app.tasks["fails"].trigger_sync()
    kit.app.tasks["ship"].trigger_sync(UUID(int=1), Address("Ulm"))

    assert failing(kit) == ("welcome was not triggered at all. What was: fails twice, ship once.")


def test_the_closest_run_is_shown_with_its_differences(kit: Kit) -> None:
    welcome(kit, 1, "fr")
    closest = welcome(kit, 42, "de", delay=30)

    said = failing(kit, payload={"user_id": 42, "locale": "en"}, delay=60, idempotency_key="w42")

    assert said == (
        "welcome with user_id=42, locale='en', idempotency_key='w42', delay=60"
        " was not triggered.\n"
        f"The closest of 2 runs of welcome is {closest}:\n"
        "  locale: wanted 'en', got 'de'\n"
        "  idempotency_key: wanted 'w42', got nothing\n"
        "  delay: wanted 60 s, got 30 s"
    )


def test_arguments_too_many_and_too_few(kit: Kit) -> None:
    closest = welcome(kit, 1, "de")

    said = failing(kit, payload={"user_id": 1, "extra": None}, exactly=True)

    assert said == (
        "welcome with exactly user_id=1, extra=None was not triggered.\n"
        f"The closest of 1 run of welcome is {closest}:\n"
        "  extra: wanted None, got nothing\n"
        "  locale: wanted nothing, got 'de'"
    )


def test_too_often(kit: Kit) -> None:
    first, second = welcome(kit, 1), welcome(kit, 1, "de")

    assert failing(kit, payload={"user_id": 1}, times=1) == (
        "welcome with user_id=1 was triggered twice, not once:\n"
        f"  {first} welcome(user_id=1), queued\n"
        f"  {second} welcome(user_id=1, locale='de'), queued"
    )


def test_triggered_although_it_should_not(kit: Kit) -> None:
    run = welcome(kit, 1)

    kit.assert_not_triggered("welcome", {"user_id": 2})
    with pytest.raises(AssertionError) as failed:
        kit.assert_not_triggered("welcome", {"user_id": 1})
    assert str(failed.value) == (
        f"welcome with user_id=1 was triggered once:\n  {run} welcome(user_id=1), queued"
    )


def test_a_parameter_that_does_not_exist_is_a_mistake_of_the_test(kit: Kit) -> None:
    with pytest.raises(InvalidInput) as refused:
        kit.assert_not_triggered("welcome", {"userid": 1})
    assert str(refused.value) == (
        "payload: welcome has no parameter 'userid'; it has extra, locale, user_id"
    )
    with pytest.raises(InvalidInput, match="colour"):
        kit.assert_triggered("welcome", colour="red")


def test_success_and_its_result(kit: Kit) -> None:
    run = welcome(kit, 1)
    shipped = kit.app.tasks["ship"].trigger_sync(UUID(int=1), Address("Ulm"))

    with pytest.raises(AssertionError) as early:
        kit.assert_succeeded(run)
    kit.run_until_idle()

    assert (
        str(early.value)
        == f"welcome ({run}) is not succeeded, but queued, due at 2030-01-01 00:00:00"
    )
    kit.assert_succeeded(run, result="en 1")
    kit.assert_succeeded(shipped, result=datetime(2030, 1, 1, tzinfo=UTC))
    with pytest.raises(AssertionError) as other:
        kit.assert_succeeded(run, result="de 1")
    assert str(other.value) == f"welcome ({run}) returned 'en 1', not 'de 1'"


def test_failure_and_how(kit: Kit) -> None:
    run = kit.app.tasks["fails"].trigger_sync("card 42 refused")
    kit.run_until_idle()

    with pytest.raises(AssertionError) as early:
        kit.assert_failed(run)
    kit.run_until_done()

    assert str(early.value) == (
        f"fails ({run.id}) is not failed or dead_lettered, but retrying, due at"
        " 2030-01-01 00:01:00: ValueError: card 42 refused"
    )
    kit.assert_failed(run, kind="error", type=ValueError, match=r"card \d+")
    kit.assert_failed(run, type="ValueError")
    kit.assert_dead_lettered(run)
    with pytest.raises(AssertionError) as other:
        kit.assert_failed(run, kind="timeout", type=KeyError, match="stolen")
    assert str(other.value) == (
        f"fails ({run.id}) failed otherwise:\n"
        "  kind: wanted 'timeout', got 'error'\n"
        "  type: wanted 'KeyError', got 'ValueError'\n"
        "  message: nothing in 'card 42 refused' matches 'stolen'"
    )


def test_no_dead_letter(kit: Kit) -> None:
    run = welcome(kit, 1)
    kit.run_until_idle()

    with pytest.raises(AssertionError) as failed:
        kit.assert_dead_lettered(run)
    assert str(failed.value) == f"welcome ({run}) is not dead_lettered, but succeeded"


def test_retries_are_counted(kit: Kit) -> None:
    run = kit.app.tasks["fails"].trigger_sync()
    kit.run_until_done()

    kit.assert_retried(run)
    kit.assert_retried(run, times=1)
    with pytest.raises(AssertionError) as failed:
        kit.assert_retried(run, times=3)
    assert str(failed.value) == (
        f"fails ({run.id}) was retried once, not 3 times; it is dead_lettered: ValueError: no"
    )


def test_a_run_that_was_never_retried(kit: Kit) -> None:
    run = welcome(kit, 1)
    kit.run_until_idle()

    with pytest.raises(AssertionError) as failed:
        kit.assert_retried(run)
    assert str(failed.value) == (f"welcome ({run}) was never retried; it is succeeded")


def test_histories_are_compared_line_by_line(kit: Kit) -> None:
    run = welcome(kit, 1)
    kit.run_until_idle()
    happened = ["run.created", "run.lease_claimed", "run.started", "run.succeeded"]

    kit.assert_history(run, happened)
    with pytest.raises(AssertionError) as failed:
        kit.assert_history(run, ["run.created", "run.started"])
    assert str(failed.value) == (
        f"welcome ({run}) has another history:\n"
        "    run.created  run.created\n"
        "  ≠ run.started  run.lease_claimed\n"
        "  ≠ -            run.started\n"
        "  ≠ -            run.succeeded"
    )


def test_a_run_that_does_not_exist(kit: Kit) -> None:
    with pytest.raises(RunNotFound):
        kit.assert_succeeded("run_00000000000000000000000000000000")


def test_a_run_that_returned_nothing_has_a_result_of_none(kit: Kit) -> None:
    @kit.app.task
    def nothing() -> None:
        pass

    run = nothing.trigger_sync()
    kit.run_until_idle()

    kit.assert_succeeded(run, result=None)
