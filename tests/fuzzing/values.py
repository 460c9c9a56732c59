"""Valid values of the routes' own types, with names that exist where a field names something."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import msgspec.inspect as mi

from fuzzing.known import Held, Known
from perdure.core.run.lifecycle import Status
from perdure.engine.runtime.ids import make_run_id

TASKS = ("double", "fragile", "anything", "large")
QUEUES = ("default", "numbers", "letters")
LABELS = tuple(f"label_{number}" for number in range(12))
NAMES = ("nightly", "posts", *LABELS[:2])
"""Of schedules and webhooks: few, so that most calls meet one that exists."""
CRONS = (
    "* * * * *", "0 0 29 2 *", "*/7 1-5 * * mon", "0 0 31 2 *", "@daily", "59 23 31 12 *",
    "0,1,2,3 */2 1-31 jan-dec sun", "0 0 * * 7", "60 * * * *",
)  # fmt: skip
ZONES = ("UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Kathmandu", "Nowhere/Else")
RATES = ("100/1m", "1/s", "5/10s", "0/1m", "1/99999999d")
URLS = ("http://192.0.2.1/", "https://example.invalid/a?b=c", "http://127.0.0.1:1/", "ftp://x", "x")
FAILURE_KINDS = ("error", "timeout", "crash", "rejected", "none")
EVENTS = ("run.succeeded", "run.failed", "run.*", "*", "run.nothing")
TIMES_S = (0, 0.001, 1, 30, 60, 3600, 86400, 10**8)

_SUITABLE = {
    "cron": ("tz", "gap", "fold", "start", "end", "jitter"),
    "every": ("anchor", "start", "end", "jitter"),
    "at": ("tz", "gap", "fold"),
}
"""What goes with each kind of cadence."""
_EXCLUSIVE = (("run_at", "delay"), ("since", "after"), ("delay", "until"))
GOOD_MANIFESTS = 3
"""So many of the first ones are valid."""
_MANIFESTS = (
    "schedules: []",
    "name: m{n}\ntask: double\nevery: 60\npayload: {{number: 1}}",
    ("name: m{n}\ntask: fragile\ncron: '*/5 * * * *'\ntz: Europe/Berlin"
    "\n---\nname: n{n}\ntask: fragile\nevery: 1h"),
    "schedules:\n  - name: m{n}\n    task: double\n    every: 60\n    unknown: 1",
    ("schedules:\n  - name: m{n}\n    task: shell_{n}\n    every: 60"
    "\ntasks:\n  - name: shell_{n}\n    argv: [true]"),
    "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c, *c]",
    "a: &a {{x: 1}}\n" * 200, "a0: &a0 x\n" + "".join(
        f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(9)
    ),
    "[" * 300, "? " * 300, "- " * 300 + "x", "!!python/object/apply:os.system [id]", "\0",
    "a: 1\na: 2",
    "name: 0001-01-01\ntask: double\nat: 9999-12-31T23:59:59-14:00", "{{", "# nothing",
    "- 1\n" * 5000,
)  # fmt: skip


class Values:
    """Makes values for one call, as the key that sends it would."""

    def __init__(self, random: Random, known: Known, key: str, route: str) -> None:
        self._random = random
        self._route = route
        self._known = known
        self._key = key
        self._names: dict[str, Callable[[], Any]] = self._make_names()

    def body(self, kind: Any) -> Any:
        """An object of a route's body or query type."""
        info = mi.type_info(kind)
        assert isinstance(info, mi.StructType)
        return self._struct(info)

    def name(self, parameter: str) -> str:
        """A name for a parameter of a path."""
        found = self._known.pick(self._random, parameter)
        return self._label() if found is None else found

    # By type

    def _value(self, kind: mi.Type, name: str = "") -> Any:
        """A valid value; `name` is that of the field."""
        match kind:
            case mi.Metadata():
                return self._value(kind.type, name)
            case mi.UnionType():
                options = [it for it in kind.types if not isinstance(it, mi.NoneType)]
                is_none = len(options) < len(kind.types) and self._random.random() < 0.1
                return None if is_none else self._value(self._random.choice(options), name)
            case mi.StructType():
                return self._struct(kind)
            case mi.ListType() | mi.VarTupleType() | mi.SetType() | mi.FrozenSetType():
                return self._list(kind, name)
            case mi.DictType():
                several = range(self._random.choice((0, 1, 2)))
                return {self._label(): self._value(kind.value_type) for _ in several}
            case _:
                return self._plain(kind, name)

    def _plain(self, kind: mi.Type, name: str) -> Any:
        random = self._random
        match kind:
            case mi.StrType():
                return self._text(kind, name)
            case mi.IntType() | mi.FloatType():
                return self._number(kind, name)
            case mi.BoolType():
                return random.random() < 0.3
            case mi.EnumType():
                return random.choice([member.value for member in kind.cls])
            case mi.DateTimeType():
                return self._instant()
            case mi.TimeDeltaType():
                return random.choice(("PT0S", "PT1S", "PT60S", "PT1H", "P1D", "P400D"))
            case mi.NoneType():
                return None
            case mi.RawType() | mi.AnyType():
                return self._names.get(name, self._any)()
            case _:
                raise AssertionError(f"no values for {kind}")

    def _struct(self, kind: mi.StructType) -> dict[str, Any]:
        random, made = self._random, dict[str, Any]()
        if kind.tag_field is not None:
            made[kind.tag_field] = kind.tag
        share = random.choice((0.0, 0.05, 0.2, 0.5))
        for field in kind.fields:
            if field.required or random.random() < share:
                made[field.encode_name] = self._value(field.type, field.encode_name)
        self._agree(kind, made)
        return made

    def _agree(self, kind: mi.StructType, made: dict[str, Any]) -> None:
        """Change fields that must agree with each other."""
        names = {field.encode_name for field in kind.fields}
        if {"run_id", "token"} <= names:
            made |= self._lease(names)
        if {"cron", "every"} <= names:
            self._choose_cadence(made)
        if kind.cls.__name__ == "TaskEntry" and self._random.random() < 0.7:
            made |= {"executor": "async", "target": None}
        if made.get("start") and made.get("end"):
            made["start"], made["end"] = sorted((made["start"], made["end"]))
        for one, other in _EXCLUSIVE:
            if one in made and other in made:
                del made[other]
        if kind.cls.__name__ == "ReplayBody" and not {"since", "after"} & made.keys():
            made["since"] = self._instant()

    def _choose_cadence(self, made: dict[str, Any]) -> None:
        kinds = {"cron": self._cron, "every": self._seconds, "at": self._instant}
        chosen = self._random.choice(list(kinds))
        for name in list(made):
            if name not in _SUITABLE[chosen]:
                del made[name]
        made[chosen] = kinds[chosen]()
        if "jitter" in made:
            made["jitter"] = self._random.choice((0, 1, 60))

    def _lease(self, names: set[str]) -> dict[str, Any]:
        found = self._known.lease(self._random, self._key)
        if found is None or self._random.random() < 0.1:
            found = Held(self._run_id(), self._token(), 1, "")
        fields = {"run_id": found.run_id, "token": found.token, "attempt": found.attempt}
        return {name: value for name, value in fields.items() if name in names}

    def _list(self, kind: Any, name: str) -> list[Any]:
        least = kind.min_length or 0
        most = min(kind.max_length or 600, 600)
        count = max(
            least, self._random.choice((0, 1, 1, 2, 3, most if self._random.random() < 0.05 else 1))
        )
        item = {"tasks": "task", "queues": "queue", "run_ids": "run_id"}.get(
            name, name.removesuffix("s")
        )
        return [self._value(kind.item_type, item) for _ in range(count)]

    def _text(self, kind: mi.StrType, name: str) -> str:
        named = self._names.get(name)
        if named is not None and self._random.random() < 0.9:
            return str(named())
        if kind.pattern is not None:
            return str(self._patterns()[kind.pattern]())
        return self._label()

    def _patterns(self) -> dict[str, Callable[[], str]]:
        """Texts for each pattern that a field has."""
        return {
            "^run_[0-9a-f]{32}$": self._run_id,
            "^[0-9a-f]{32}$": self._token,
            "^[A-Za-z0-9_.-]{1,100}$": self._worker,
            "^[^=]+=.*$": lambda: f"{self._label()}={self._label()}",
        }

    def _number(self, kind: mi.IntType | mi.FloatType, name: str) -> float:
        if name == "wait":
            return self._random.choice((0.0, 0.0, 0.01, 20.0))
        least = kind.ge if kind.ge is not None else 1
        most = kind.le if kind.le is not None else 10_000 if kind.lt is None else kind.lt - 1
        choices = (least, most, least + 1, least + 1, least + 5, least + 60)
        number = min(most, self._random.choice(choices))
        return int(number) if isinstance(kind, mi.IntType) else number

    # By name

    def _make_names(self) -> dict[str, Callable[[], Any]]:
        choice = self._random.choice

        def pick(kind: str) -> Callable[[], str]:
            return lambda: self.name(kind)

        return {
            "task": lambda: choice(TASKS), "queue": lambda: choice(QUEUES), "cron": self._cron,
            "expression": self._cron, "tz": lambda: choice(ZONES), "rate": lambda: choice(RATES),
            "rate_per_key": lambda: choice(RATES), "url": lambda: choice(URLS),
            "event": lambda: choice(EVENTS), "status": lambda: choice([*Status, "open", "dead"]),
            "worker_id": self._worker, "run_id": self._run_id, "parent_id": self._run_id,
            "request_id": lambda: make_run_id(datetime.now(UTC)), "token": self._token,
            "session": lambda: f"{self._random.randrange(4):032x}", "payload": self._payload,
            "ids": lambda: ",".join(self._run_id() for _ in range(choice((1, 2, 90)))),
            "cursor": pick(f"cursor of {self._route}"), "name": lambda: choice(NAMES),
            "after": pick(f"cursor of {self._route}"),
            "failure_kind": lambda: choice(FAILURE_KINDS),
            "batch_id": pick("batch_id"),
            "fingerprint": pick("fingerprint"), "schedule_id": pick("schedule"),
            "text": self._manifest if self._route == "apply_manifest" else lambda: choice(TASKS),
            "signing_secret": lambda: choice(("WEBHOOK_X", "WEBHOOK_Y", "HOME", "")),
        }  # fmt: skip

    def _label(self) -> str:
        return self._random.choice(LABELS)

    def _cron(self) -> str:
        return self._random.choice(CRONS)

    def _manifest(self) -> str:
        """Mostly one that can be applied."""
        chosen = _MANIFESTS[: GOOD_MANIFESTS if self._random.random() < 0.6 else None]
        return self._random.choice(chosen).format(n=self._random.randrange(9))

    def _seconds(self) -> float:
        return self._random.choice(TIMES_S)

    def _instant(self) -> str:
        distance = self._random.choice((0, -1, 1, 60, -3600, 86400, -86400 * 40, 86400 * 400))
        return (datetime.now(UTC) + timedelta(seconds=distance)).isoformat().replace("+00:00", "Z")

    def _run_id(self) -> str:
        found = self._known.pick(self._random, "run_id")
        is_new = found is None or self._random.random() < 0.05
        return f"run_{self._random.getrandbits(128):032x}" if is_new else str(found)

    def _token(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def _worker(self) -> str:
        """Mostly the one that the sender's key registers."""
        if self._random.random() < 0.85:
            return f"worker_of_{self._key}"
        return self.name("worker")

    def _payload(self) -> Any:
        usual = {"number": self._random.randrange(9)}
        return self._random.choice((*[usual] * 6, {}, {"message": "x"}, self._any()))

    def _any(self) -> Any:
        return self._random.choice(
            (None, 1, "text", [1, {"a": []}], {"number": 1}, {"password": "x"}, 1.5, "ä", {})
        )
