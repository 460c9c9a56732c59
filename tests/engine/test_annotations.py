"""What may be annotated, what fits an annotation, and what is said when it does not."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from builders import as_id
from perdure import Context
from perdure.engine.tasks.signature import Signature
from perdure.errors import InvalidPayload, InvalidTask


class Plain:
    pass


class Odd(Enum):
    A = 1.5


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Paint:
    colour: Colour


@dataclass
class Address:
    street: str
    number: int = 1


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Cast(msgspec.Struct):
    lead: Address


class Pair(NamedTuple):
    a: Address
    b: int = 2


class Aliased(pydantic.BaseModel):
    number: int = pydantic.Field(alias="no")


class Tree(TypedDict):
    children: list["Tree"]


@dataclass
class HasDefault:
    path: Path = Path("/tmp")


@dataclass
class Holds:
    thing: Plain


def taking(annotation: Any) -> Callable[..., Any]:
    def f(x: Any) -> Any:
        return x

    f.__annotations__ = {"x": annotation, "return": annotation}
    return f


def there_and_back(annotation: Any, value: Any) -> Any:
    signature = Signature(taking(annotation), Context)
    arguments = signature.decode(signature.encode({"x": value}))
    result = signature.decode_result(signature.encode_result(arguments["x"]))
    assert result == arguments["x"]
    return arguments["x"]


NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (bytes, b"\xff\x00"),
        (Decimal, Decimal("1.10")),
        (UUID, UUID(int=7)),
        (datetime, NOW),
        (date, NOW.date()),
        (timedelta, timedelta(seconds=1.5)),
        (Path, Path("/tmp/x")),
        (PurePosixPath | None, PurePosixPath("a")),
        (set[int], {1, 2}),
        (tuple[int, str], (1, "a")),
        (dict[int, str], {1: "a"}),
        (dict[str, list[Address]], {"home": [Address("M", 3)]}),
        (Colour, Colour.RED),
        (Pair, Pair(Address("M"), 5)),
        (Cast, Cast(Address("M"))),
        (Aliased, Aliased(no=5)),
        (list[Aliased], [Aliased(no=5)]),
        (Tree, {"children": [{"children": []}]}),
        (object, {"a": 1}),
        (Any, [1, "a", None]),
    ],
    ids=as_id,
)
def test_what_goes_in_comes_back_in_arguments_and_results(annotation: Any, value: Any) -> None:
    back = there_and_back(annotation, value)

    assert (type(back), back) == (type(value), value)


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (datetime, "2026-03-01T00:00:00Z", NOW),
        (UUID, str(UUID(int=7)), UUID(int=7)),
        (Path, "/tmp/x", Path("/tmp/x")),
        (Decimal, "1.10", Decimal("1.10")),
        (dict[int, str], {"1": "a"}, {1: "a"}),
        (Address, {"street": "M", "number": 3}, Address("M", 3)),
    ],
    ids=as_id,
)
def test_json_will_do_where_there_is_no_python(annotation: Any, text: Any, value: Any) -> None:
    assert there_and_back(annotation, text) == value


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        (Plain, "Plain cannot be kept as JSON; use plain types, a dataclass"),
        (Holds, "Plain cannot be kept"),
        (list[Plain], "Plain cannot be kept"),
        (Callable[[], int], "Callable cannot be kept"),
        (Iterator[int], "Iterator cannot be kept"),
        (int | Plain, "int | "),
        (list[int] | set[int], "more than one array-like"),
        (Odd, "Enums must contain either all str or all int values"),
        (dict[tuple[int, int], str], "cannot have keys of type tuple"),
        (type, "type cannot be kept"),
    ],
    ids=as_id,
)
def test_an_annotation_that_cannot_work_is_refused_at_once(annotation: Any, problem: str) -> None:
    with pytest.raises(InvalidTask) as refused:
        Signature(taking(annotation), Context)

    assert problem in str(refused.value)
    assert "f, parameter x" in str(refused.value)


def test_a_result_that_cannot_work_is_refused_at_once() -> None:
    def f() -> Plain:
        raise NotImplementedError

    with pytest.raises(InvalidTask, match=r"f, its result: a value of type .*Plain"):
        Signature(f, Context)


def test_a_name_that_only_type_checkers_see_is_explained() -> None:
    def pay(amount: "Euro") -> None:  # type: ignore[name-defined]  # noqa: F821  # that is the point
        raise NotImplementedError

    with pytest.raises(InvalidTask, match=r"name Euro, which cannot be found .* TYPE_CHECKING"):
        Signature(pay, Context)


def test_one_context_is_enough() -> None:
    def two(ctx: Context, other: Context) -> None:
        raise NotImplementedError

    with pytest.raises(InvalidTask, match="ctx and other are both the Context"):
        Signature(two, Context)


def test_a_context_may_be_optional_and_anywhere() -> None:
    def last(n: int, ctx: Context | None = None) -> None:
        raise NotImplementedError

    signature = Signature(last, Context)

    assert signature.context_name == "ctx"
    assert signature.bind((5,), {}) == {"n": 5}


@pytest.mark.parametrize(
    ("annotation", "value", "field", "problem"),
    [
        (str, b"a", "x", "Expected `str`, got `bytes`: b'a'"),
        (str, UUID(int=7), "x", "Expected `str`, got `uuid`"),
        (int, "x", "x", "Expected `int`, got `str`: 'x'"),
        (float, float("nan"), "x", "cannot be kept as JSON"),
        (str, "\ud800", "x", "lone surrogate"),
        (Any, {"a": [1, {"b": float("inf")}]}, "x.a[1].b", "cannot be kept as JSON"),
        (Any, {1: 2}, "x", "key that is not text"),
        (Any, Plain(), "x", "Plain is not a JSON value"),
        (Address, {"street": "M", "numbr": 3}, "x.numbr", "there is no such field"),
        (Movie, {"title": "M", "yaer": 3}, "x.yaer", "there is no such field"),
        (list[Movie], [{"title": "M"}, {"title": "M", "z": 1}], "x[1].z", "no such field"),
        (tuple[int, Address], [1, {"street": "M", "z": 1}], "x[1].z", "no such field"),
        (dict[str, Movie], {"k": {"title": "M", "z": 1}}, "x.k.z", "no such field"),
        (Movie | None, {"title": "M", "z": 1}, "x.z", "no such field"),
        (Cast, {"lead": {"street": "M", "z": 1}}, "x.lead.z", "no such field"),
        (Tree, {"children": [{"children": [], "z": 1}]}, "x.children[0].z", "no such field"),
        (Address, {}, "x.street", "missing required field"),
        (Address, {"street": "M", "number": "3"}, "x.number", "got `str`: '3'"),
        (dict[str, int], {"a": "b"}, "x.a", "Expected `int`, got `str`: 'b'"),
        (dict[str, list[int]], {"a": [1], "b": [1, "c"]}, "x.b[1]", "got `str`: 'c'"),
        (dict[str, dict[str, int]], {"a": {"b": 1, "c": None}}, "x.a.c", "got `null`: None"),
        (list[dict[str, Aliased]], [{"a": {"no": 1}, "b": {}}], "x[0].b.no", "Field required"),
        (dict[int, str], {"a": "b"}, "x", "Expected `int`, got `str`"),
        (Aliased, {"no": "x"}, "x.no", "valid integer"),
        (list[Aliased], [{"no": 1}, {}], "x[1].no", "Field required"),
        (Path, 5, "x", "Expected `Path`, got `int`: 5"),
        (Colour, "green", "x", "Invalid enum value 'green'; there are: 'red', 'blue'"),
        (Literal["a", 2], "b", "x", "Invalid enum value 'b'; there are: 2, 'a'"),
        (list[Colour | None], ["red", "green"], "x[1]", "there are: 'red', 'blue'"),
        (tuple[int, Colour], [1, "green"], "x[1]", "there are: 'red', 'blue'"),
        (dict[str, Colour], {"a": "green"}, "x.a", "there are: 'red', 'blue'"),
        (Paint, {"colour": "green"}, "x.colour", "there are: 'red', 'blue'"),
    ],
    ids=as_id,
)
def test_a_misfit_says_where_and_what(
    annotation: Any, value: Any, field: str, problem: str
) -> None:
    with pytest.raises(InvalidPayload) as refused:
        Signature(taking(annotation), Context).encode({"x": value})

    assert refused.value.field == field
    assert problem in refused.value.problem
    assert str(refused.value).startswith("f, argument x")


def test_a_value_within_itself_is_refused() -> None:
    itself: list[Any] = []
    itself.append(itself)
    deep: Any = []
    for _ in range(100):
        deep = [deep]

    for value in (itself, deep):
        with pytest.raises(InvalidPayload) as refused:
            Signature(taking(Any), Context).encode({"x": value})
        assert refused.value.field == "x"
        assert "nested" in refused.value.problem


def test_missing_and_unknown_arguments_are_named() -> None:
    def greet(name: str, loud: bool = False) -> None:
        raise NotImplementedError

    signature = Signature(greet, Context)

    with pytest.raises(InvalidPayload, match="is missing") as missing:
        signature.encode({})
    with pytest.raises(InvalidPayload, match="did you mean name") as unknown:
        signature.encode({"nmae": "x"})
    with pytest.raises(InvalidPayload, match="did you mean loud") as keyword:
        signature.bind(("ada",), {"lowd": True})
    with pytest.raises(InvalidPayload) as stored:
        signature.decode(msgspec.Raw(b'{"loud": true}'))

    assert [e.value.field for e in (missing, unknown, keyword, stored)] == [
        "name",
        "nmae",
        "lowd",
        "name",
    ]


def test_parameters_may_have_any_name_and_be_positional_only() -> None:
    def odd(_a: int, __b: int = 3, /, class_: int = 1, *, __struct_fields__: int = 0) -> list[int]:
        return [_a, __b, class_, __struct_fields__]

    signature = Signature(odd, Context)
    arguments = signature.decode(signature.encode(signature.bind((1,), {"__struct_fields__": 9})))

    assert signature.call(odd, arguments) == [1, 3, 1, 9]
    assert signature.call(odd, {"_a": 1, "__b": 5}) == [1, 5, 1, 0]


def test_the_schema_knows_paths_and_anything() -> None:
    def f(path: Path, thing: object, name: str = "x") -> None:
        raise NotImplementedError

    [schema] = Signature(f, Context).schema()["$defs"].values()

    assert schema["properties"]["path"] == {"type": "string", "format": "path"}
    assert schema["required"] == ["path", "thing"]


def test_what_has_no_schema_is_a_task_all_the_same() -> None:
    def f(holds: HasDefault) -> None:
        raise NotImplementedError

    assert Signature(f, Context).schema() == {}
