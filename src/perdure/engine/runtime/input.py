"""What people give us, checked where it comes in: names, ids, counts, choices, durations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from enum import StrEnum
from itertools import islice
from typing import Any, TypeVar

from perdure.core.decide.lease import MAX_LEASE_TTL
from perdure.core.json_text import check_label
from perdure.core.run.backoff import LONGEST
from perdure.core.run.failure import MAX_MESSAGE
from perdure.core.run.run import Actor, ActorType
from perdure.core.text import in_words
from perdure.errors import InvalidInput

Duration = float | int | timedelta
EnumT = TypeVar("EnumT", bound=StrEnum)

By = Actor | str
"""Who does it: the operator's name, or an Actor."""

OPERATOR = Actor(ActorType.OPERATOR)
"""Who does it if nobody says who."""

_UNKEEPABLE = re.compile(r"[\x00\ud800-\udfff]")


def duration(value: Duration, field: str) -> timedelta:
    """Seconds or a timedelta, never negative, never longer than `LONGEST`."""
    if type(value) not in (int, float, timedelta):
        raise InvalidInput(field, f"must be seconds or a timedelta, not {value!r:.80}")
    try:
        length = value if isinstance(value, timedelta) else timedelta(seconds=value)
    except (ValueError, OverflowError):  # not a number, or beyond every calendar
        length = None
    if length is None or length > LONGEST:
        problem = f"must be a number of seconds up to {LONGEST.days} days, not {value!r}"
        raise InvalidInput(field, problem)
    if length < timedelta(0):
        raise InvalidInput(field, f"must not be negative, but is {value!r}")
    return length


def some_time(value: Duration, field: str) -> timedelta:
    """A duration longer than nothing."""
    length = duration(value, field)
    if not length:
        raise InvalidInput(field, f"must be longer than nothing, not {value!r}")
    return length


def lease_length(value: Duration, field: str) -> timedelta:
    """The length of a lease: longer than nothing, up to `MAX_LEASE_TTL`."""
    length = some_time(value, field)
    if length > MAX_LEASE_TTL:
        problem = f"must be {in_words(MAX_LEASE_TTL)} at most, not {in_words(length)}"
        raise InvalidInput(field, f"{problem}: a lease is renewed while its worker lives")
    return length


def text(value: object, field: str) -> str:
    """Text that every database can compare with. Raises InvalidInput."""
    if not isinstance(value, str):
        raise InvalidInput(field, f"must be text, not {value!r:.80}")
    if _UNKEEPABLE.search(value):
        problem = f"must not hold NUL or lone surrogates, but is {value!r:.80}"
        raise InvalidInput(field, problem)
    return value


def count(value: int, field: str, *, least: int = 1) -> int:
    """A whole number from `least` on."""
    if type(value) is not int or value < least:
        raise InvalidInput(field, f"must be a whole number from {least} on, not {value!r:.80}")
    return value


def number(value: float, field: str, least: float, most: float) -> float:
    if type(value) not in (int, float) or not least <= value <= most:
        problem = f"must be a number between {least:g} and {most:g}, not {value!r:.80}"
        raise InvalidInput(field, problem)
    return float(value)


def flag(value: bool, field: str) -> bool:
    if type(value) is not bool:
        raise InvalidInput(field, f"must be True or False, not {value!r:.80}")
    return value


def choice(value: str, kind: type[EnumT], field: str) -> EnumT:
    """One of the members of `kind`."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        hint = did_you_mean(value, kind)
        raise InvalidInput(field, f"must be one of {known}, not {value!r:.80}{hint}") from None


def only_known(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raises InvalidInput for the first name that is not known."""
    known = list(known)
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f"; there are: {', '.join(known)}"
            raise InvalidInput(name, f"is no {what}{hint}")


MAX_GUESSED = 200
MAX_COMPARED = 1000
"""Names. A comparison takes microseconds, and a request may hold up no other for long."""
"""Characters of a name for which a similar one is sought. The search takes time for each one."""


def did_you_mean(given: Any, known: Iterable[str]) -> str:
    """A hint at what may have been meant, or nothing."""
    similar = find_similar(str(given), known)
    return f"; did you mean {similar}?" if similar else ""


def find_similar(given: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like the given one, if one is."""
    from difflib import get_close_matches  # only to explain a mistake

    if len(given) > MAX_GUESSED:
        return None
    near = get_close_matches(given, islice(known, MAX_COMPARED), 1)
    return near[0] if near else None


def actor_of(by: By, field: str = "by") -> Actor:
    """Who does something: an operator's name, or an Actor."""
    if isinstance(by, str):
        return Actor(ActorType.OPERATOR, check_label(by, field))
    if not isinstance(by, Actor):
        problem = f"must be an operator's name or an Actor, not {by!r:.80}"
        raise InvalidInput(field, problem)
    if by.id is not None:
        check_label(by.id, f"{field}.id")
    return Actor(choice(by.type, ActorType, f"{field}.type"), by.id)


def reason_of(reason: str | None, field: str = "reason") -> str | None:
    """Why somebody does something. It is kept as it is, so what cannot be kept is refused; one of
    spaces only says nothing."""
    if reason is None:
        return None
    if len(text(reason, field)) > MAX_MESSAGE:
        problem = f"must have at most {MAX_MESSAGE} characters, not {len(reason)}"
        raise InvalidInput(field, problem)
    return reason.strip() or None


def client_of(actor: By | None) -> Actor:
    """Return the actor of an app's triggers: a client with this name, or the given actor. Without
    one it is the operating system's user and host."""
    if actor is None:
        from perdure.engine.process.os_user import user_at_host  # only if it is used

        return Actor(ActorType.CLIENT, user_at_host())
    if isinstance(actor, str):
        return Actor(ActorType.CLIENT, check_label(actor, "actor"))
    return actor_of(actor, "actor")


def queue_names(queues: Sequence[str] | None) -> tuple[str, ...] | None:
    """Which queues to serve; none: all of them."""
    if queues is None:
        return None
    if isinstance(queues, str):
        problem = f"must be a list of names, e.g. [{queues!r}], not {queues!r}"
        raise InvalidInput("queues", problem)
    if not queues:
        raise InvalidInput("queues", "name at least one, or leave it out to serve all")
    return tuple(check_label(name, "queues") for name in queues)


def run_id_of(run: Any) -> str:
    """The id of a run, of its handle, or of the run itself."""
    run_id = run if isinstance(run, str) else getattr(run, "id", None)
    if not isinstance(run_id, str):
        raise InvalidInput("run_id", f"must be a run's id or its handle, not {run!r:.80}")
    return run_id
