"""One call: a request made from a route, by a key, in one of several moods."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from random import Random
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from fuzzing.hostile import encode, huge_body, large_value, mutate, raw_body, strange_text
from fuzzing.known import Known
from fuzzing.values import Values
from perdure.storage.contract.wire_errors import PROTOCOL, PROTOCOL_HEADER
from perdure.web.operations.operation import Route
from perdure.web.operations.table import ROUTES


def _weight(route: Route) -> int:
    """How often calls of a route are made. Most calls need what a few others made."""
    if route.method == "DELETE" or route.group == "keys":
        return 1
    makes_something = route.status == 201 or route.method == "PUT" or route.speaks_protocol
    return 4 if makes_something else 2


WEIGHTED = [route for route in ROUTES for _ in range(_weight(route))]
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
MEDIA_TYPES = (
    "application/json; charset=utf-16", "text/plain", "application/x-www-form-urlencoded", "",
    "application/vnd.x+json", "multipart/form-data; boundary=x", "application/json;" + "x" * 3000,
)  # fmt: skip
HEADERS: dict[str, tuple[str, ...]] = {
    "if-match": ('"1"', '"2"', '"3"', "*", '"0"', f'"{10**40}"', 'W/"1"', "1", "", '"-1"',
    "x" * 9000),
    "idempotency-key": ("one", "two", "", "x" * 300, "é", "%00", "a b"),
    "last-event-id": ("0", "1", "-1", str(10**40), "x", "1:2", "%00", ""),
    "x-reason": ("because", "%00", "%ff", "a%20b", "x" * 2001, "%F0%9F%98%80", "%"),
    "traceparent": (
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-0-0-0", "x" * 5000, "",
        "00-00000000000000000000000000000000-0000000000000000-00",
    ),
    "tracestate": ("a=b", "x" * 600, ",,,"),
    "x-request-id": ("request-0001", "x" * 65, "é", "\x01", ""),
    "origin": ("http://[", "http://127.0.0.1", "null", "http://a:b", "//["),
    "host": ("127.0.0.1", "localhost:1", "evil.example", "[", ""),
    "accept": ("text/html", "*/*;q=x", "text/event-stream"),
    "content-encoding": ("gzip", "br", "identity"),
    "x-forwarded-for": ("1.2.3.4", "x" * 3000),
    "cookie": ("a=b; " * 500,),
    PROTOCOL_HEADER: ("1", "3", "x", "2" * 5000, "", "2.0"),
}  # fmt: skip
MOODS = {"valid": 50.0, "almost": 33.0, "hostile": 15.8, "large": 1.2}
"""Percent of the calls. Large ones have a body of up to megabytes and cost as much as a hundred."""


class Call(msgspec.Struct, kw_only=True):
    """A request, before it is bytes."""

    route: Route
    key: str
    """The name of the key, "" without one."""
    mood: str
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    is_chunked: bool = False
    may_be_cut: bool = False
    """Whether the server may close the connection without an answer."""
    closes_early: bool = False
    """Whether the client does not wait for the end of the answer."""


class Generator:
    """Makes the calls of one seed. Which names exist depends on the answers."""

    def __init__(self, seed: int, known: Known, keys: Mapping[str, str]) -> None:
        self._seed = seed
        self._known = known
        self._keys = keys

    def make(self, number: int) -> Call:
        """The call with this number."""
        random = Random(f"{self._seed}:{number}")
        route, key = random.choice(WEIGHTED), self._key(random)
        [mood] = random.choices(list(MOODS), list(MOODS.values()))
        making = _Making(random, route, key, mood, Values(random, self._known, key, route.name))
        call = making.call()
        authorization = self._authorization(random, key)
        if authorization is not None:
            call.headers.append(("authorization", authorization))
        return call

    def _key(self, random: Random) -> str:
        """Mostly one that may do everything: others are refused before they reach anything."""
        kind = random.random()
        if kind < 0.75:
            return random.choice(("all", "all_too"))
        return random.choice([*self._keys, "", "learnt", "malformed"])

    def _authorization(self, random: Random, key: str) -> str | None:
        if key == "":
            return None
        if key == "malformed":
            text = self._keys["all"]
            return random.choice(
                ("Bearer", "Bearer ", f"Basic {text}", text, f"Bearer {text}x", "Bearer é",
                 f"Bearer {text[:-1]}", f"bearer  {text}", f"Bearer pk_{'0' * 12}_{'A' * 43}",
                 "Bearer " + "x" * 9000, f"Bearer {text}, Bearer {text}")
            )  # fmt: skip
        learnt = self._known.pick(random, "key") if key == "learnt" else None
        return f"Bearer {learnt or self._keys.get(key, self._keys['all'])}"


class _Making:
    """Makes one call."""

    def __init__(self, random: Random, route: Route, key: str, mood: str, values: Values) -> None:
        self._random = random
        self._route = route
        self._values = values
        self._call = Call(
            route=route, key=key, mood=mood, method=route.method, target="", headers=[]
        )

    def call(self) -> Call:
        call, route = self._call, self._route
        call.target = self._path() + self._query()
        if route.speaks_protocol:
            call.headers.append((PROTOCOL_HEADER, str(PROTOCOL)))
        self._add_body()
        if call.mood == "hostile":
            self._spoil()
        elif self._random.random() < 0.15:
            self._add_header()
        if route.media_type == "text/event-stream" or route.name == "worker_hints":
            call.closes_early = True
        return call

    def _path(self) -> str:
        path = self._route.path
        for parameter in self._route.parameters:
            is_letter = "dead-letters" in path and self._random.random() < 0.8
            text = self._values.name("letter" if is_letter else parameter)
            if self._call.mood == "almost" and self._random.random() < 0.2:
                text = strange_text(self._random)
            path = path.replace(f"{{{parameter}}}", _quoted(text))
        return path

    def _query(self) -> str:
        if self._route.query is None:
            return (
                "?unknown=1" if self._call.mood == "almost" and self._random.random() < 0.1 else ""
            )
        query = self._values.body(self._route.query)
        if self._call.mood == "almost":
            query = mutate(self._random, query)
        if not isinstance(query, dict):
            return f"?{_quoted(str(query))}"
        given = [(name, _plain(value)) for name, value in query.items() if value is not None]
        if given and self._call.mood == "almost" and self._random.random() < 0.1:
            given.append(given[0])
        return f"?{urlencode(given, errors='surrogatepass')}" if given else ""

    def _add_body(self) -> None:
        call, random = self._call, self._random
        if self._route.body is None:
            return
        value = self._values.body(self._route.body)
        if call.mood == "almost":
            value = mutate(random, value)
        elif call.mood == "large":
            value = self._enlarge(value)
        call.body = value if isinstance(value, bytes) else encode(value)
        if call.mood == "hostile":
            call.body = raw_body(random, call.body)
        call.headers.append(("content-type", "application/json"))
        call.is_chunked = random.random() < 0.05

    def _enlarge(self, value: Any) -> Any:
        if self._random.random() < 0.1:
            return huge_body(self._random)
        large, path = large_value(self._random), value
        while isinstance(path, dict | list) and path:
            place = self._random.choice(list(path)) if isinstance(path, dict) else 0
            if not isinstance(path[place], dict | list) or not path[place]:
                path[place] = {"number": 1, "large": large} if place == "payload" else large
                return value
            path = path[place]
        return large

    # Requests that are wrong as such

    def _spoil(self) -> None:
        ways: tuple[Callable[[], None], ...] = (
            self._add_header, self._add_header, self._change_method, self._change_path,
            self._change_media_type, self._lie_about_length, self._compress, self._close_early,
        )  # fmt: skip
        for _ in range(self._random.choice((1, 1, 2))):
            self._random.choice(ways)()

    def _add_header(self) -> None:
        name = self._random.choice(list(HEADERS))
        if name == "host" or self._random.random() < 0.7:
            self._call.headers = [it for it in self._call.headers if it[0] != name]
        self._call.headers.append((name, self._random.choice(HEADERS[name])))
        if name in ("host", "x-request-id"):
            self._call.may_be_cut = True

    def _change_method(self) -> None:
        self._call.method = self._random.choice(METHODS)

    def _change_path(self) -> None:
        path, random = self._call.target, self._random
        ways = (
            path + "/", path + "%00", path.replace("/", "//", 1), path.upper(), "/..",
            path + "%2F..%2Fx",
            path + "/" + "x" * 5000, path.replace("v1", "v2"), "/v1/%ff%fe", path + "#x", "*",
            path + "%",
            "http://127.0.0.1" + path, path + "?a=1&a=2&" + "b" * 9000,
            "/v1/runs/" + _quoted("\ud800"),
        )  # fmt: skip
        self._call.target = random.choice(ways)

    def _change_media_type(self) -> None:
        others = [it for it in self._call.headers if it[0] != "content-type"]
        self._call.headers = [*others, ("content-type", self._random.choice(MEDIA_TYPES))]

    def _lie_about_length(self) -> None:
        body = len(self._call.body)
        wrong = self._random.choice(
            ("0", "-1", "x", str(10**30), str(max(body - 1, 0)), "1, 1", "٣")
        )
        self._call.headers.append(("content-length", wrong))
        self._call.may_be_cut = self._call.closes_early = True

    def _compress(self) -> None:
        self._call.body = gzip.compress(self._call.body, mtime=0)
        self._call.headers.append(("content-encoding", "gzip"))

    def _close_early(self) -> None:
        self._call.closes_early = True


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="surrogatepass")


def _plain(value: Any) -> str:
    """As a query string says it."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else str(value)[:5000]
