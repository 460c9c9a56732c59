"""Definitions: what is refused, what makes two of them equal, and that they are stored whole."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from builders import a_policy
from perdure.core.schedule import (
    Definition,
    Schedule,
    at,
    changed_fields,
    check_definition,
    cron,
    definition_hash,
    every,
)
from perdure.errors import InvalidInput
from scheduling import HOUR, NINE, a_definition, a_schedule


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("name", {"id": ""}),
        ("name", {"id": "a:b"}),
        ("name", {"id": "manual"}),
        ("name", {"id": "x" * 201}),
        ("task", {"task": ""}),
        ("every", {"cadence": msgspec.structs.replace(every(60), length=timedelta(0))}),
        ("misfire_grace", {"misfire_grace": timedelta(0)}),
        ("misfire_grace", {"misfire_grace": timedelta(days=4000)}),
        ("catch_up_limit", {"catch_up_limit": 0}),
        ("catch_up_limit", {"catch_up_limit": 10_001}),
        ("catch_up_limit", {"catch_up_limit": True}),
        ("catch_up_age", {"catch_up_age": timedelta(0)}),
        ("max_concurrency", {"max_concurrency": 0}),
        ("ttl", {"ttl": timedelta(seconds=-1)}),
        ("queue", {"queue": ""}),
        ("concurrency_key", {"concurrency_key": "\n"}),
        ("priority", {"priority": 11}),
        ("tags", {"tags": {"": "news"}}),
        ("policy.max_attempts", {"policy": a_policy(max_attempts=-1)}),
    ],
)
def test_a_definition_that_makes_no_sense_is_refused_by_its_field(
    field: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_definition(a_definition(**fields))

    assert caught.value.field == field


def test_a_definition_that_says_everything_is_fine() -> None:
    check_definition(
        a_definition(
            queue="mail",
            priority=5,
            policy=a_policy(max_attempts=1),
            ttl=HOUR,
            concurrency_key="tenant",
            tags={"team": "news"},
            catch_up_age=HOUR,
        )
    )


@pytest.mark.parametrize("cadence", [cron("@daily", tz="Europe/Berlin"), every(60), at(NINE)])
def test_a_schedule_is_read_back_as_it_was_written(cadence: Any) -> None:
    schedule = a_schedule(cadence=cadence, policy=a_policy(), tags={"a": "b"})

    read = msgspec.json.decode(msgspec.json.encode(schedule), type=Schedule)

    assert read == schedule
    assert definition_hash(read.definition) == definition_hash(schedule.definition)


def test_the_hash_is_of_what_is_said_and_not_of_how() -> None:
    said = a_definition(max_concurrency=1, tags={"a": "1", "b": "2"})
    again = a_definition(cadence=cron("0  *  * * *"), tags={"b": "2", "a": "1"})

    assert definition_hash(said) == definition_hash(again)


def test_an_option_added_by_a_later_version_does_not_change_the_hash() -> None:
    """Definitions with the default of an option hash as if there were no such option."""
    later = msgspec.defstruct("Definition", [("new_option", int, 0)], bases=(Definition,))
    made: Any = later(**msgspec.structs.asdict(a_definition()))

    assert definition_hash(made) == definition_hash(a_definition())


@pytest.mark.parametrize(
    "fields",
    [{"max_concurrency": 2}, {"cadence": every(3600)}, {"payload_json": msgspec.Raw(b"1")}],
)
def test_whatever_differs_makes_another_hash_and_is_named(fields: dict[str, Any]) -> None:
    old, new = a_definition(), a_definition(**fields)

    assert definition_hash(old) != definition_hash(new)
    assert list(changed_fields(old, new)) == list(fields)
    assert changed_fields(old, old) == {}


def test_a_live_schedule_knows_its_next_nominal_time() -> None:
    assert a_schedule().next_at == NINE + HOUR
    assert a_schedule(enabled=False).next_at is None
    assert a_schedule(cadence=at(NINE)).next_at is None
