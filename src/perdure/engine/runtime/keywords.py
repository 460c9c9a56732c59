"""Keywords that nobody knows, answered with the one that was perhaps meant.

Python's own words for it name neither the nearest keyword nor the others. What type checkers see
stays as it was written.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from perdure.engine.runtime.input import only_known

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    ExplainedStruct = msgspec.Struct
else:

    class _Explaining(type(msgspec.Struct)):
        def __call__(cls, *args, **kwargs):
            only_known(kwargs, cls.__struct_fields__, f"argument of {cls.__name__}")
            return super().__call__(*args, **kwargs)

    class ExplainedStruct(msgspec.Struct, metaclass=_Explaining):
        """A Struct whose constructor explains keywords that it does not know."""


def explain_keywords(function: F) -> F:
    """Have a function raise InvalidInput, with a hint, for keywords that it does not know."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return function  # it takes any, and looks at them itself
    known = [p.name for p in parameters if p.kind is not inspect.Parameter.POSITIONAL_ONLY]
    names = frozenset(known)
    # An operator at a server has the name of the one beside the database.
    name = function.__qualname__.removesuffix(".__init__").removeprefix("Remote")
    what = f"argument of {name}"

    def check(given: dict[str, Any]) -> None:
        if not given.keys() <= names:
            only_known(given, [name for name in known if name != "self"], what)

    wrapped: F = (_awaited if inspect.iscoroutinefunction(function) else _called)(function, check)
    return wrapped


def explain_methods(cls: type[T]) -> type[T]:
    """The same for a class: what makes one, and what it offers."""
    return explain_offers(cls, also=("__init__",))


def explain_offers(cls: type[T], *, also: Collection[str] = ()) -> type[T]:
    """What it offers, of a class that only the engine makes."""
    for name, method in list(vars(cls).items()):
        if inspect.isfunction(method) and (name in also or not name.startswith("_")):
            setattr(cls, name, explain_keywords(method))
    return cls


def _called(function: Any, check: Callable[[dict[str, Any]], None]) -> Any:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        check(kwargs)
        return function(*args, **kwargs)

    return call


def _awaited(function: Any, check: Callable[[dict[str, Any]], None]) -> Any:
    @wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        check(kwargs)
        return await function(*args, **kwargs)

    return call
