"""A task's real signature: what may be passed to it, and what comes back.

Arguments travel as one JSON object, checked against the function's own annotations when the run
is triggered and again when it is executed: plain types, dataclasses, TypedDicts, msgspec Structs
and Pydantic models.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Union, get_type_hints

import msgspec

from perdure.core.values import DEFAULT_LIMIT, encode_value
from perdure.errors import InvalidInput, InvalidPayload, InvalidTask

_PATH = re.compile(r"^(?P<problem>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)
_UNSUPPORTED = {
    inspect.Parameter.VAR_POSITIONAL: "*{}",
    inspect.Parameter.VAR_KEYWORD: "**{}",
}


class Signature:
    """How to call one function with JSON, and how to read what it returned."""

    def __init__(self, function: Callable[..., Any], context_type: type) -> None:
        self._name = function.__qualname__
        self._signature = inspect.signature(function)
        hints = get_type_hints(function, include_extras=True)
        parameters = self._signature.parameters
        self.context_name = _context_name(hints, parameters, context_type)
        self._arguments = _arguments_type(self._name, parameters, hints, self.context_name)
        self._decoder = msgspec.json.Decoder(self._arguments, dec_hook=_from_plain)
        self._result_type = hints.get("return", Any)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, as Python would bind them, without the context."""
        if self.context_name is not None:
            # Bound by name, so that the caller's first positional argument is the next one.
            signature = self._signature.replace(
                parameters=[
                    parameter
                    for name, parameter in self._signature.parameters.items()
                    if name != self.context_name
                ]
            )
        else:
            signature = self._signature
        try:
            return dict(signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise InvalidPayload(self._name, "", str(error)) from error

    def encode(self, arguments: Mapping[str, Any], limit: int = DEFAULT_LIMIT) -> msgspec.Raw:
        """The payload for these arguments. Raises InvalidPayload, naming the field."""
        try:
            plain = msgspec.to_builtins(dict(arguments), enc_hook=_to_plain)
        except (TypeError, NotImplementedError) as error:
            raise InvalidPayload(self._name, "", f"cannot be kept as JSON: {error}") from error
        payload = encode_value(plain, limit=limit)
        self.decode(payload)
        return payload

    def decode(self, payload: msgspec.Raw) -> dict[str, Any]:
        """The arguments of a payload, typed. Raises InvalidPayload, naming the field."""
        try:
            struct = self._decoder.decode(bytes(payload))
        except (msgspec.ValidationError, ValueError) as error:
            match = _PATH.match(str(error))
            path = (match["path"] or "").lstrip(".") if match else ""
            problem = match["problem"] if match else str(error)
            raise InvalidPayload(self._name, path, problem) from error
        return {
            name: getattr(struct, name)
            for name in self._arguments.__struct_fields__
            if getattr(struct, name) is not msgspec.UNSET
        }

    def encode_result(self, value: Any, limit: int = DEFAULT_LIMIT) -> msgspec.Raw:
        try:
            plain = msgspec.to_builtins(value, enc_hook=_to_plain)
        except (TypeError, NotImplementedError) as error:
            raise InvalidInput("result", f"cannot be kept as JSON: {error}") from error
        return encode_value(plain, field="result", limit=limit)

    def decode_result(self, result: msgspec.Raw) -> Any:
        """The result as the function's return annotation says; as plain JSON if it does not fit."""
        if self._result_type in (Any, None, type(None)):
            return msgspec.json.decode(bytes(result))
        try:
            return msgspec.json.decode(bytes(result), type=self._result_type, dec_hook=_from_plain)
        except (msgspec.ValidationError, TypeError, NotImplementedError):
            return msgspec.json.decode(bytes(result))

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the payload, for the catalogue."""
        return msgspec.json.schema(self._arguments, schema_hook=_schema)


def _context_name(
    hints: Mapping[str, Any], parameters: Mapping[str, Any], context_type: type
) -> str | None:
    named = [name for name in parameters if hints.get(name) is context_type]
    return named[0] if named else None


def _arguments_type(
    name: str,
    parameters: Mapping[str, inspect.Parameter],
    hints: Mapping[str, Any],
    context_name: str | None,
) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for parameter in parameters.values():
        if parameter.name == context_name:
            continue
        if parameter.kind in _UNSUPPORTED:
            spelt = _UNSUPPORTED[parameter.kind].format(parameter.name)
            raise InvalidTask(name, f"{spelt} has no place in a payload; name every parameter")
        hint = hints.get(parameter.name, Any)
        if parameter.default is inspect.Parameter.empty:
            fields.append((parameter.name, hint))
        else:
            # The default itself stays the function's business, also if it changes later.
            optional: Any = Union.__getitem__((hint, msgspec.UnsetType))
            fields.append((parameter.name, optional, msgspec.UNSET))
    try:
        return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
    except TypeError as error:
        raise InvalidTask(name, str(error)) from error


def _to_plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise NotImplementedError(f"{type(value).__name__} is not a JSON value")


def _from_plain(wanted: type, value: Any) -> Any:
    if hasattr(wanted, "model_validate"):
        return wanted.model_validate(value)
    raise NotImplementedError(f"{wanted.__name__} cannot be made from JSON")


def _schema(wanted: type) -> dict[str, Any]:
    if hasattr(wanted, "model_json_schema"):
        schema: dict[str, Any] = wanted.model_json_schema()
        return schema
    raise NotImplementedError(f"{wanted.__name__} has no JSON Schema")
