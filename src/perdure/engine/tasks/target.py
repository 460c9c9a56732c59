"""What an http or shell task does, as data: it stands in the catalogue, and in manifests.

`read_target` takes plain data (of YAML, JSON); `HttpTarget` and `ShellTarget` check themselves.
Either raises InvalidInput with the field, the value and what to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from perdure.engine.runtime.input import choice, count, flag, only_known
from perdure.engine.runtime.secret import Secret
from perdure.errors import InvalidInput
from perdure.net.url import read_url

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
RESPONSE_LIMIT = 256 * 1024
OUTPUT_LIMIT = 64 * 1024
LARGEST_RESPONSE = 1024 * 1024
LARGEST_OUTPUT = 256 * 1024
MOST_HEADERS = 50
MOST_ARGUMENTS = 1000

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
_HEADER_TEXT = re.compile(r"[\x21-\x7e]([\x20-\x7e\t]{0,8190}[\x21-\x7e])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = frozenset({
    "accept-encoding", "connection", "content-length", "expect", "host", "idempotency-key",
    "keep-alive", "te", "traceparent", "tracestate", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
_OURS_BEGIN = ("perdure-", "proxy-", "webhook-")

Text = str | Secret


class HttpTarget(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="http", omit_defaults=True
):
    """A request for each attempt: the payload as JSON, unless `method` has no body. It is signed
    with each of `signing_secrets`. A response longer than `response_limit` bytes is a failure, or
    with `truncate` a marked beginning."""

    url: str
    method: str = "POST"
    headers: dict[str, Text] = {}
    signing_secrets: tuple[Secret, ...] = ()
    response_limit: int = RESPONSE_LIMIT
    truncate: bool = False

    def __post_init__(self) -> None:
        read_url(self.url)
        if self.method not in METHODS:
            problem = f"must be one of {', '.join(METHODS)}, not {self.method!r:.80}"
            raise InvalidInput("method", problem)
        _check_headers(self.headers)
        _check_signing(self.signing_secrets)
        _check_limit(self.response_limit, "response_limit", LARGEST_RESPONSE)
        flag(self.truncate, "truncate")


class Stdout(StrEnum):
    """What standard output means for the result: a text, or a JSON value."""

    TEXT = "text"
    JSON = "json"


class ShellTarget(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="shell", omit_defaults=True
):
    """A command for each attempt, without a shell: a program and its arguments. `env` is added
    to a minimal environment; exit codes in `permanent` fail for good; of each output stream,
    `output_limit` bytes are kept. Longer standard output is a failure, or with `truncate` a marked
    result."""

    argv: tuple[str, ...]
    env: dict[str, Text] = {}
    cwd: str | None = None
    permanent: tuple[int, ...] = ()
    stdout: Stdout = Stdout.TEXT
    output_limit: int = OUTPUT_LIMIT
    truncate: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "argv", _checked_argv(self.argv))
        _check_env(self.env)
        if self.cwd is not None:
            _check_directory(self.cwd)
        force_setattr(self, "permanent", _checked_codes(self.permanent))
        force_setattr(self, "stdout", choice(self.stdout, Stdout, "stdout"))
        _check_limit(self.output_limit, "output_limit", LARGEST_OUTPUT)
        flag(self.truncate, "truncate")


Target = HttpTarget | ShellTarget

_KINDS: dict[str, type[HttpTarget] | type[ShellTarget]] = {"http": HttpTarget, "shell": ShellTarget}


def read_target(data: Any, field: str = "target") -> Target:
    """From plain data, e.g. `{"kind": "http", "url": "https://…"}`. Raises InvalidInput."""
    if not isinstance(data, Mapping):
        problem = f"must be a mapping such as {{'kind': 'http', 'url': …}}, not {data!r:.80}"
        raise InvalidInput(field, problem)
    kind = data.get("kind")
    if kind not in _KINDS:
        raise InvalidInput(f"{field}.kind", f"must be http or shell, not {kind!r:.80}")
    wanted = _KINDS[kind]
    first = wanted.__struct_fields__[0]
    try:
        only_known(data, ("kind", *wanted.__struct_fields__), f"field of a target of kind {kind}")
        if first not in data:
            raise InvalidInput(first, f"is missing; a target of kind {kind} needs it")
        return wanted(**{name: _read(value) for name, value in data.items() if name != "kind"})
    except InvalidInput as error:
        raise InvalidInput(f"{field}.{error.field}", error.problem) from error


def _read(value: Any) -> Any:
    """Plain data with its references to secrets made such: `{"secret": "NAME"}`."""
    if isinstance(value, list | tuple):
        return tuple(_read(item) for item in value)
    if not isinstance(value, Mapping):
        return value
    if "secret" not in value:
        return {name: _read(inner) for name, inner in value.items()}
    only_known(value, ("secret", "prefix"), "field of a secret")
    return Secret(value["secret"], value.get("prefix", ""))


def _check_headers(headers: Any) -> None:
    if not isinstance(headers, dict) or len(headers) > MOST_HEADERS:
        problem = f"must be a dict of at most {MOST_HEADERS}, not {headers!r:.80}"
        raise InvalidInput("headers", problem)
    seen = set()
    for name, value in headers.items():
        field = f"headers.{name!s:.80}"
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise InvalidInput(field, "is no name of a header: letters, digits and dashes")
        if name.lower() in _OURS or name.lower().startswith(_OURS_BEGIN):
            raise InvalidInput(field, "is set by Perdure itself; leave it out")
        if name.lower() in seen:
            raise InvalidInput(field, "is given twice, spelled differently; give it once")
        seen.add(name.lower())
        if not isinstance(value, Secret):
            check_header_text(value, field)


def check_header_text(value: Any, field: str) -> str:
    """Raises InvalidInput unless it can be the value of a header."""
    if not isinstance(value, str) or not _HEADER_TEXT.fullmatch(value):
        problem = "must be printable ASCII without line breaks, or secret(…)"
        raise InvalidInput(field, problem)
    return value


def _check_signing(secrets: Any) -> None:
    if not isinstance(secrets, tuple) or not all(isinstance(s, Secret) for s in secrets):
        problem = "must be given by reference: signing_secret=secret('NAME'), never the value"
        raise InvalidInput("signing_secrets", problem)


def _checked_argv(argv: Any) -> tuple[str, ...]:
    if isinstance(argv, str) or not isinstance(argv, list | tuple):
        advice = 'e.g. ["pg_dump", "shop"]; for a shell say ["sh", "-c", "…"]'
        raise InvalidInput("argv", f"must be a list, {advice}, not {argv!r:.80}")
    if not 1 <= len(argv) <= MOST_ARGUMENTS:
        raise InvalidInput("argv", f"must have 1 to {MOST_ARGUMENTS} items, not {len(argv)}")
    for index, argument in enumerate(argv):
        _check_text(argument, f"argv[{index}]")
    if not argv[0]:
        raise InvalidInput("argv[0]", "must name a program, and is empty")
    return tuple(argv)


def _check_env(env: Any) -> None:
    if not isinstance(env, dict):
        raise InvalidInput("env", f"must be a dict, not {env!r:.80}")
    for name, value in env.items():
        field = f"env.{name!s:.80}"
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise InvalidInput(field, "is no name of a variable: letters, digits and underscores")
        if name.startswith("PERDURE_") or name.lower() == "traceparent":
            raise InvalidInput(field, "is set by Perdure itself; choose another name")
        if not isinstance(value, Secret):
            _check_text(value, field)


def _check_directory(cwd: Any) -> None:
    if not PurePath(_check_text(cwd, "cwd")).is_absolute():
        raise InvalidInput("cwd", f"must be an absolute path, not {cwd!r:.80}")


def _check_text(value: Any, field: str) -> str:
    if not isinstance(value, str) or "\0" in value or not _is_unicode(value):
        raise InvalidInput(field, f"must be text without NUL, not {value!r:.80}")
    return value


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def _checked_codes(codes: Any) -> tuple[int, ...]:
    if not isinstance(codes, list | tuple):
        raise InvalidInput("permanent", f"must be a list of exit codes, not {codes!r:.80}")
    for code in codes:
        if type(code) is not int or not 1 <= code <= 255:
            raise InvalidInput("permanent", f"must be exit codes from 1 to 255, not {code!r:.80}")
    return tuple(codes)


def _check_limit(value: int, field: str, most: int) -> None:
    if count(value, field) > most:
        raise InvalidInput(field, f"must be {most} bytes at most, not {value}")
