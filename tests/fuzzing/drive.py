"""Sends seeded calls to a server, and finds what must not happen."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import msgspec

from fuzzing.calls import Call, Generator
from fuzzing.client import Answer, Client, NoAnswer
from fuzzing.target import Target

CLIENTS = 4
MAX_PROBLEMS = 20
SAMPLE_EVERY = 100
MAX_SHOWN_BYTES = 2000
SHARES = tuple(
    f"urn:perdure:problem:too-many-{what}" for what in ("streams", "requests", "connections")
)
"""The problems of an exhausted share: the only ones that may be a 503."""


class Verdict(msgspec.Struct):
    """What some calls led to."""

    statuses: Counter[str] = msgspec.field(default_factory=Counter)
    """By status; `closed`: the client did not wait, `cut`: the server closed the connection."""
    reached: Counter[str] = msgspec.field(default_factory=Counter)
    """Routes by how often a call of them succeeded."""
    problems: list[str] = msgspec.field(default_factory=list)
    memory_bytes: list[int] = msgspec.field(default_factory=list)
    """Of the server, sampled between the calls."""


def fuzz(
    target: Target, seed: int, calls: int, report: Callable[[int], None] = lambda done: None
) -> Verdict:
    """Send so many calls. At the first problems, stop."""
    return asyncio.run(_fuzz(target, seed, calls, report))


async def _fuzz(target: Target, seed: int, calls: int, report: Callable[[int], None]) -> Verdict:
    verdict = Verdict()
    numbers = _until_problems(target, verdict, calls, report)
    generator = Generator(seed, target.known, target.keys)
    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(_send_calls(target, generator, numbers, verdict))
    target.calls += verdict.statuses.total()
    return verdict


def _until_problems(
    target: Target, verdict: Verdict, calls: int, report: Callable[[int], None]
) -> Iterator[int]:
    """The numbers of the calls. Memory is sampled on the way."""
    for number in range(calls):
        if len(verdict.problems) >= MAX_PROBLEMS:
            return
        if number % SAMPLE_EVERY == 0:
            report(number)
            verdict.memory_bytes.append(target.memory_bytes)
        yield number
    verdict.memory_bytes.append(target.memory_bytes)


async def _send_calls(
    target: Target, generator: Generator, numbers: Iterator[int], verdict: Verdict
) -> None:
    address = urlsplit(target.address)
    async with Client(str(address.hostname), address.port or 0) as client:
        for number in numbers:
            call = generator.make(number)
            try:
                answer = await client.send(call)
            except NoAnswer as error:
                verdict.statuses["cut"] += 1
                if not call.may_be_cut:
                    verdict.problems.append(f"call {number}: {error}: {describe(call)}")
                continue
            _judge(verdict, number, call, answer)
            if answer is not None:
                target.known.learn(call.route, call.key, answer.status, answer.body)


def _judge(verdict: Verdict, number: int, call: Call, answer: Answer | None) -> None:
    verdict.statuses["closed" if answer is None else str(answer.status)] += 1
    if answer is None:
        return
    if answer.status < 300:
        verdict.reached[call.route.name] += 1
    if not is_allowed(answer):
        said = answer.body[:MAX_SHOWN_BYTES].decode("utf-8", "replace")
        verdict.problems.append(f"call {number}: {answer.status} {said}: {describe(call)}")


def is_allowed(answer: Answer) -> bool:
    """Whether the server may answer so to any request."""
    if answer.status < 500:
        return True
    if answer.status != 503 or "retry-after" not in answer.headers:
        return False
    return msgspec.json.decode(answer.body)["type"] in SHARES


def describe(call: Call) -> str:
    """The request, as far as it is needed to send it again."""
    headers = [(name, f"{value:.200}") for name, value in call.headers if name != "authorization"]
    body = call.body[:MAX_SHOWN_BYTES]
    return (
        f"{call.mood} {call.method} {call.target:.2000} by {call.key!r} {headers} {body!r}"
        f"{f' … {len(call.body)} bytes' if len(call.body) > len(body) else ''}"
    )
