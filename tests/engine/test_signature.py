"""Payloads are checked against the function's real signature."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest

from perdure import Context
from perdure.engine.tasks.signature import Signature
from perdure.errors import InvalidPayload, InvalidTask, PayloadTooLarge


@dataclass
class Address:
    street: str
    number: int


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Movie(TypedDict):
    title: str
    year: int


class Model(pydantic.BaseModel):
    name: str


def rich(
    address: Address, point: Point, movie: Movie, model: Model, when: datetime, count: int = 3
) -> Point:
    raise NotImplementedError


def limited(name: Annotated[str, msgspec.Meta(min_length=2)], *, loud: bool = False) -> None:
    raise NotImplementedError


def with_context(ctx: Context, path: str) -> None:
    raise NotImplementedError


def round_trip(function: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    signature = Signature(function, Context)
    return signature.decode(signature.encode(signature.bind(args, kwargs)))


def test_every_kind_of_argument_comes_back_as_itself() -> None:
    when = datetime(2026, 3, 1, tzinfo=UTC)
    arguments = {
        "address": Address("Main", 5),
        "point": Point(1),
        "movie": Movie(title="M", year=1931),
        "model": Model(name="ada"),
        "when": when,
    }

    assert round_trip(rich, **arguments) == arguments


def test_arguments_bind_as_python_binds_them() -> None:
    assert round_trip(limited, "ada", loud=True) == {"name": "ada", "loud": True}
    assert round_trip(with_context, "/tmp") == {"path": "/tmp"}


def test_a_default_is_left_to_the_function() -> None:
    assert round_trip(limited, "ada") == {"name": "ada"}


@pytest.mark.parametrize(
    ("args", "field", "problem"),
    [
        (("a",), "name", "length >= 2"),
        ((5,), "name", "Expected `str`, got `int`"),
        ((), "name", "missing a required argument"),
        (("ada", True), "arguments", "too many positional arguments: it takes 1, not 2"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_field(
    args: tuple[Any, ...], field: str, problem: str
) -> None:
    with pytest.raises(InvalidPayload) as refused:
        round_trip(limited, *args)

    assert refused.value.field == field
    assert problem in str(refused.value)
    assert "limited" in str(refused.value)


def test_a_nested_field_is_named_by_its_path() -> None:
    signature = Signature(rich, Context)
    payload = b"""{"address": {"street": "M", "number": "x"}, "point": {"x": 1},
        "model": {"name": "a"}, "movie": {"title": "M", "year": 1},
        "when": "2026-03-01T00:00:00Z"}"""

    with pytest.raises(InvalidPayload) as refused:
        signature.decode(msgspec.Raw(payload))

    assert refused.value.field == "address.number"


def test_a_pydantic_model_says_itself_what_is_wrong() -> None:
    def greet(model: Model) -> None:
        raise NotImplementedError

    with pytest.raises(InvalidPayload, match="valid string") as refused:
        Signature(greet, Context).decode(msgspec.Raw(b'{"model": {"name": 5}}'))

    assert refused.value.field == "model.name"


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(InvalidPayload, match="unknown field"):
        Signature(limited, Context).decode(msgspec.Raw(b'{"name":"ada","nmae":"x"}'))


def test_values_that_json_cannot_keep_are_refused() -> None:
    def anything(value: Any) -> None:
        raise NotImplementedError

    with pytest.raises(InvalidPayload, match="object is not a JSON value"):
        round_trip(anything, object())
    with pytest.raises(PayloadTooLarge, match="payload of anything"):
        Signature(anything, Context).encode({"value": "x" * 100}, limit=50)


def test_star_parameters_have_no_place_in_a_payload() -> None:
    def starred(*args: int) -> None:
        raise NotImplementedError

    def double_starred(**kwargs: int) -> None:
        raise NotImplementedError

    for function in (starred, double_starred):
        with pytest.raises(InvalidTask, match="name every parameter"):
            Signature(function, Context)


def test_results_are_read_as_the_annotation_says() -> None:
    signature = Signature(rich, Context)

    result = signature.encode_result(Point(1, 2))

    assert signature.decode_result(result) == Point(1, 2)
    assert signature.decode_result(msgspec.Raw(b'"not a point"')) == "not a point"


def test_the_catalogue_gets_a_json_schema() -> None:
    schema = Signature(limited, Context).schema()

    assert "name" in str(schema)
    assert Signature(rich, Context).schema()["$defs"]
