"""A task's real signature: what may be passed to it, and what comes back.

Arguments travel as one JSON object, checked against the function's own annotations when the run
is triggered and again when it is executed: plain types, dataclasses, TypedDicts, msgspec Structs
and Pydantic models.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Any, Never, NoReturn, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec
from msgspec import UNSET
from msgspec.inspect import Type

from perdure.core.json_text import DEFAULT_LIMIT, encode_value
from perdure.engine.runtime.input import did_you_mean
from perdure.engine.tasks import annotation
from perdure.engine.tasks.argument_errors import misfit, unkeepable
from perdure.errors import (
    InvalidInput,
    InvalidPayload,
    InvalidTask,
    PayloadTooLarge,
    ResultMismatch,
)

_NATIVE = (bytes, bytearray, memoryview, datetime, date, time, timedelta, UUID, Decimal)
_PLAIN = frozenset({str, int, float, bool, NoneType})
"""What is JSON already."""
_NO_TYPE = (Any, object, Never, NoReturn)
_QUOTED = re.compile(r"'(\w+)'")
_NOT_JSON = (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError)
_UNSUPPORTED = {
    inspect.Parameter.VAR_POSITIONAL: "*{}",
    inspect.Parameter.VAR_KEYWORD: "**{}",
}


class Signature:
    """How to call one function with JSON, and how to read what it returned."""

    def __init__(self, function: Callable[..., Any], context_type: type) -> None:
        self._name = function.__name__
        self._signature = inspect.signature(function)
        hints = _hints(function)
        self.context_name = self._context_name(hints, context_type)
        others = [p for p in self._signature.parameters.values() if p.name != self.context_name]
        self._asked = self._signature.replace(parameters=others)
        self._parameters = {parameter.name: parameter for parameter in others}
        self._positional = [p.name for p in others if p.kind is not p.KEYWORD_ONLY]
        self._required = [p.name for p in others if p.default is p.empty]
        self._types = {name: self._checked(hints, name) for name in self._parameters}
        self._closed = [n for n, info in self._types.items() if annotation.is_closed(info)]
        self._str_keys = any(map(annotation.has_keys_that_are_no_text, self._types.values()))
        self._arguments = self._arguments_type(hints)
        self._fields = tuple(zip(self._parameters, self._arguments.__struct_fields__, strict=True))
        self._decoder = msgspec.json.Decoder(self._arguments, dec_hook=_from_plain)
        self._result_type = self._checked_result(hints)
        self.may_return_none = self._fits(None)
        kinds = [parameter.kind for parameter in self._signature.parameters.values()]
        self._by_name = inspect.Parameter.POSITIONAL_ONLY not in kinds

    # Arguments

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, as Python would bind them, without the context."""
        if len(args) == len(self._positional) and not kwargs:
            return dict(zip(self._positional, args, strict=True))
        try:
            return dict(self._asked.bind(*args, **kwargs).arguments)
        except TypeError as error:
            self._refuse_unknown(kwargs)
            named = _QUOTED.search(str(error))
            if named is not None:
                raise InvalidPayload(self._name, named[1], str(error)) from error
            most = len([p for p in self._parameters.values() if p.kind is not p.KEYWORD_ONLY])
            problem = f"{error}: it takes {most}, not {len(args)}"
            raise InvalidPayload(self._name, "arguments", problem) from error

    def encode(self, arguments: Mapping[str, Any], limit: int = DEFAULT_LIMIT) -> msgspec.Raw:
        """The payload for these arguments. Raises InvalidPayload, naming the field."""
        self._check_names(arguments)
        is_plain = _PLAIN.issuperset(map(type, arguments.values()))
        native = dict(arguments) if is_plain else self._native(arguments)
        self._check_types(native)
        plain = native if is_plain else msgspec.to_builtins(native, str_keys=self._str_keys)
        try:
            payload = encode_value(plain, limit=limit)
        except PayloadTooLarge as error:
            raise PayloadTooLarge(f"payload of {self._name}", error.size, limit) from None
        except InvalidInput as error:
            raise InvalidPayload(self._name, unkeepable(plain), error.problem) from error
        self._read(payload)
        return payload

    @property
    def names(self) -> list[str]:
        """The names of the parameters, without the context."""
        return list(self._parameters)

    def all_arguments(self, payload: msgspec.Raw) -> dict[str, Any]:
        """The arguments of a payload, and the function's defaults for those it lacks."""
        parameters = self._parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        return defaults | self.decode(payload)

    def decode(self, payload: msgspec.Raw) -> dict[str, Any]:
        """The arguments of a payload, typed. Raises InvalidPayload, naming the field."""
        read = self._read(payload)
        return {n: value for n, f in self._fields if (value := getattr(read, f)) is not UNSET}

    def _read(self, payload: msgspec.Raw) -> msgspec.Struct:
        try:
            return self._decoder.decode(payload)
        except (msgspec.MsgspecError, ValueError) as error:
            raise misfit(self._name, error, None, self._arguments) from error

    def call(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """`function` with these arguments, however it wants them passed."""
        if self._by_name:
            return function(**arguments)
        bound = inspect.BoundArguments(self._signature, arguments)
        bound.apply_defaults()
        return function(*bound.args, **bound.kwargs)

    def _refuse_unknown(self, arguments: Mapping[str, Any]) -> None:
        for name in arguments:
            if name not in self._parameters:
                hint = did_you_mean(name, self._parameters.keys() - arguments.keys())
                raise InvalidPayload(self._name, str(name), f"there is no such argument{hint}")

    def _check_names(self, arguments: Mapping[str, Any]) -> None:
        if not self._parameters.keys() >= arguments.keys():
            self._refuse_unknown(arguments)
        for name in self._required:
            if name not in arguments:
                raise InvalidPayload(self._name, name, "is missing")

    def _native(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Objects as dicts; instants, bytes and the like as they are, to tell them from text."""
        native: dict[str, Any] = {}
        for name, value in arguments.items():
            try:
                native[name] = _to_native(value)
            except _NOT_JSON as error:
                problem = "holds itself, or is nested too deep"
                if not isinstance(error, RecursionError):
                    problem = f"cannot be kept as JSON: {error}"
                raise InvalidPayload(self._name, name, problem) from error
        return native

    def _check_types(self, native: dict[str, Any]) -> None:
        wanted = self._arguments
        check = partial(msgspec.convert, type=wanted, dec_hook=_from_plain, str_keys=self._str_keys)
        try:
            check(native)
        except (msgspec.MsgspecError, ValueError) as error:
            raise misfit(self._name, error, native, wanted, check) from error
        for name in self._closed:
            if name in native:
                where = annotation.unknown_key(self._types[name], native[name], name)
                if where is not None:
                    raise InvalidPayload(self._name, where, "there is no such field")

    # Results

    def encode_result(self, value: Any, limit: int = DEFAULT_LIMIT) -> msgspec.Raw:
        """Return the JSON of a result. Raise ResultMismatch if it does not fit the annotation."""
        try:
            native = _to_native(value)
            plain = msgspec.to_builtins(native, str_keys=self._str_keys_in_result)
        except RecursionError as error:
            raise InvalidInput("result", "cannot be kept as JSON: it holds itself") from error
        except _NOT_JSON as error:
            raise InvalidInput("result", f"cannot be kept as JSON: {error}") from error
        self._check_result(native)
        return encode_value(plain, field="result", limit=limit)

    def _fits(self, native: Any) -> bool:
        try:
            self._check_result(native)
        except ResultMismatch:
            return False
        return True

    def _check_result(self, native: Any) -> None:
        """Apply the rules of payloads: what would be refused as an argument is refused here."""
        wanted = self._result_type
        if wanted is Any or type(native) is wanted:
            return
        str_keys = self._str_keys_in_result
        check = partial(msgspec.convert, type=wanted, dec_hook=_from_plain, str_keys=str_keys)
        try:
            check(native)
        except (msgspec.MsgspecError, ValueError) as error:
            found = misfit(self._name, error, native, wanted, check)
            raise ResultMismatch(self._name, found.field, found.problem) from error
        where = annotation.unknown_key(self._result_info, native, "")
        if where is not None:
            raise ResultMismatch(self._name, where.lstrip("."), "there is no such field")

    def decode_result(self, result: msgspec.Raw) -> Any:
        """The result as the function's return annotation says; as plain JSON if it does not fit."""
        if self._result_type in (Any, NoneType):
            return msgspec.json.decode(bytes(result))
        try:
            return msgspec.json.decode(bytes(result), type=self._result_type, dec_hook=_from_plain)
        except (msgspec.MsgspecError, TypeError, ValueError, NotImplementedError):
            return msgspec.json.decode(bytes(result))

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the payload, for the catalogue; empty if it cannot be described."""
        return _described(self._arguments)

    def result_schema(self) -> dict[str, Any]:
        """JSON Schema of the result; empty if that may be anything."""
        return {} if self._result_type in (Any, NoneType) else _described(self._result_type)

    # Reading the function

    def _context_name(self, hints: Mapping[str, Any], context_type: type) -> str | None:
        named = [
            name
            for name in self._signature.parameters
            if hints.get(name) is context_type or _is_optional(hints.get(name), context_type)
        ]
        if len(named) > 1:
            problem = f"{' and '.join(named)} are both the Context; one is enough"
            raise InvalidTask(self._name, problem)
        return named[0] if named else None

    def _checked(self, hints: Mapping[str, Any], name: str) -> Type:
        kind = self._parameters[name].kind
        if kind in _UNSUPPORTED:
            problem = f"{_UNSUPPORTED[kind].format(name)} has no place in a payload"
            raise InvalidTask(self._name, f"{problem}; name every parameter")
        where = f"{self._name}, parameter {name}"
        return annotation.check_annotation(hints.get(name, Any), where)

    def _checked_result(self, hints: Mapping[str, Any]) -> Any:
        hint = hints.get("return", Any)
        if hint in _NO_TYPE:
            hint = Any
        self._result_info = annotation.check_annotation(hint, f"{self._name}, its result")
        self._str_keys_in_result = annotation.has_keys_that_are_no_text(self._result_info)
        return hint

    def _arguments_type(self, hints: Mapping[str, Any]) -> type[msgspec.Struct]:
        """Fields have names of our own, since a parameter may have any; only JSON has theirs."""
        fields: list[Any] = []
        for number, parameter in enumerate(self._parameters.values()):
            field = msgspec.field(name=parameter.name)
            if parameter.default is not parameter.empty:
                # The default itself stays the function's business, also if it changes later.
                field = msgspec.field(name=parameter.name, default_factory=_unset)
            fields.append((f"p{number}", hints.get(parameter.name, Any), field))
        return msgspec.defstruct(self._name, fields, kw_only=True, forbid_unknown_fields=True)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        advice = (
            "import it where the task is defined, not under `if TYPE_CHECKING` or in a function"
        )
        problem = f"its annotations name {error.name}, which cannot be found there; {advice}"
        raise InvalidTask(function.__name__, problem) from error
    except Exception as error:
        problem = f"its annotations cannot be read: {type(error).__name__}: {error}"
        raise InvalidTask(function.__name__, problem) from error


def _is_optional(hint: Any, kind: type) -> bool:
    """Whether `hint` is `kind | None`."""
    others = [arm for arm in get_args(hint) if arm is not NoneType]
    return get_origin(hint) in (Union, UnionType) and others == [kind]


def _unset() -> Any:
    return UNSET


def _to_native(value: Any) -> Any:
    return msgspec.to_builtins(value, builtin_types=_NATIVE, enc_hook=_to_plain)


def _to_plain(value: Any) -> Any:
    if annotation.is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    if isinstance(value, PurePath):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} is not a JSON value")


def _from_plain(wanted: type, value: Any) -> Any:
    if annotation.is_model(wanted):
        return wanted.model_validate(value)  # type: ignore[attr-defined]  # that makes it one
    if issubclass(wanted, PurePath) and isinstance(value, str):
        return wanted(value)
    if wanted is object:
        return value
    raise ValueError(f"Expected `{wanted.__name__}`, got `{type(value).__name__}`")


def _described(kind: Any) -> dict[str, Any]:
    try:
        return msgspec.json.schema(kind, schema_hook=_schema)
    except Exception:  # noqa: BLE001  # somebody's default value or model: no reason to fail
        return {}


def _schema(wanted: type) -> dict[str, Any]:
    if hasattr(wanted, "model_json_schema"):
        schema: dict[str, Any] = wanted.model_json_schema()
        return schema
    if issubclass(wanted, PurePath):
        return {"type": "string", "format": "path"}
    return {"description": "any JSON value"}
