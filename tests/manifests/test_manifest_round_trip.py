"""What is exported and applied again changes nothing, whatever it is."""

from __future__ import annotations

import asyncio
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure import App, Manifest
from perdure.core.decide.create import check_policy
from perdure.core.json_text import decode_value, encode_value
from perdure.core.run.backoff import Backoff, BackoffKind
from perdure.core.run.run import OnExhausted, OnLeaseExpired, Policy
from perdure.core.schedule import (
    Cadence,
    Cron,
    Definition,
    Fold,
    Gap,
    Interval,
    Misfire,
    Once,
    Overlap,
    check_definition,
    next_time,
)
from perdure.engine.manifests.render import differing, say_schedule, to_yaml
from perdure.engine.schedules.options import Target, make_definition

ZONES = ("UTC", "Europe/Berlin", "Australia/Lord_Howe")
EXPRESSIONS = ("0 9 * * MON-FRI", "*/5 * * * *", "@daily", "15 30 2 L * ?", "0 0 1W * *")
WORDS = st.sampled_from(
    ["a", "0o17", "1e3", "yes", "~", "<<", "no one's", "é ☃", "- x", "2026-01-01"]
)


def lengths(least: timedelta, most: timedelta) -> st.SearchStrategy[timedelta]:
    return st.timedeltas(min_value=least, max_value=most)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INSTANTS = lengths(timedelta(days=1), timedelta(days=300_000)).map(lambda since: EPOCH + since)
WINDOWS = st.tuples(st.none() | INSTANTS, st.none() | INSTANTS).map(
    lambda pair: tuple(sorted(pair)) if None not in pair else pair  # type: ignore[type-var]
)
JITTER = st.just(timedelta(0)) | lengths(timedelta(0), timedelta(days=1))
SOME = lengths(timedelta(seconds=1), timedelta(days=3650))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e300, 1e300) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def cadences(draw: st.DrawFn) -> Cadence:
    kind, jitter = draw(st.sampled_from(["cron", "every", "at"])), draw(JITTER)
    start, end = draw(WINDOWS)
    if kind == "cron":
        return Cron(
            expression=draw(st.sampled_from(EXPRESSIONS)),
            tz=draw(st.sampled_from(ZONES)),
            gap=draw(st.sampled_from(Gap)),
            fold=draw(st.sampled_from(Fold)),
            start=start,
            end=end,
            jitter=jitter,
        )
    if kind == "every":
        anchor = draw(st.none() | INSTANTS)
        return Interval(length=draw(SOME), anchor=anchor, start=start, end=end, jitter=jitter)
    return Once(instant=draw(INSTANTS), jitter=jitter)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    delays = draw(st.just(()) | st.lists(SOME, min_size=1, max_size=3).map(tuple))
    kinds = list(BackoffKind) if delays else [kind for kind in BackoffKind if kind != "list"]
    made = Policy(
        max_attempts=draw(st.integers(0, 20)),
        backoff=Backoff(
            kind=draw(st.sampled_from(kinds)),
            initial=draw(SOME),
            factor=draw(st.floats(1, 1000)),
            maximum=draw(SOME),
            spread=draw(st.floats(0, 1)),
            delays=delays,
        ),
        timeout=draw(st.none() | SOME),
        on_lease_expired=draw(st.sampled_from(OnLeaseExpired)),
        on_exhausted=draw(st.none() | st.sampled_from(OnExhausted)),
        poison_threshold=draw(st.none() | st.integers(1, 9)),
    )
    check_policy(made)
    return made


BASES = st.just(Policy()) | policies()


@st.composite
def definitions(draw: st.DrawFn, base: Policy) -> Definition:
    near = st.just(base) | st.builds(
        lambda tries, timeout: replace(base, max_attempts=tries, timeout=timeout),
        st.integers(0, 9),
        st.none() | SOME,
    )
    made = Definition(
        id=draw(WORDS),
        task=draw(WORDS),
        cadence=draw(cadences()),
        payload_json=encode_value(draw(st.dictionaries(WORDS, JSON, max_size=3))),
        misfire=draw(st.sampled_from(Misfire)),
        misfire_grace=draw(SOME),
        catch_up_limit=draw(st.integers(1, 10_000)),
        catch_up_age=draw(st.none() | SOME),
        overlap=draw(st.sampled_from(Overlap)),
        max_concurrency=draw(st.integers(1, 100)),
        queue=draw(st.none() | WORDS),
        priority=draw(st.none() | st.integers(0, 10)),
        policy=draw(st.none() | near | policies()),
        ttl=draw(st.none() | SOME),
        concurrency_key=draw(st.none() | WORDS),
        tags=draw(st.none() | st.dictionaries(WORDS, WORDS, min_size=1, max_size=2)),
        enabled=draw(st.booleans()),
    )
    check_definition(made)
    return made


def ahead(definition: Definition) -> bool:
    """What is over is not taken from a manifest."""
    return next_time(definition.cadence, datetime.now(UTC) + timedelta(days=1)) is not None


def read_again(said: dict[str, Any], base: Policy) -> Definition:
    [stated] = Manifest.parse(to_yaml(said)).schedules
    target = Target(stated.task, base, lambda payload: encode_value(dict(payload)))
    made = make_definition(stated.name, stated.cadence, target, stated.settings)
    return made if stated.policy is None else replace(made, policy=stated.policy)


@given(st.data())
def test_a_definition_is_what_its_manifest_says(data: st.DataObject) -> None:
    base = data.draw(BASES)
    definition = data.draw(definitions(base))

    assert read_again(say_schedule(definition, base), base) == definition


@given(st.data())
def test_two_definitions_differ_where_their_manifests_do(data: st.DataObject) -> None:
    base = data.draw(BASES)
    one, other = data.draw(definitions(base)), data.draw(definitions(base))

    found = differing(say_schedule(one, base), say_schedule(other, base))

    assert bool(found) == (one != other)


@settings(max_examples=20, deadline=None)
@given(st.lists(definitions(Policy()).filter(ahead), max_size=4, unique_by=lambda one: one.id))
def test_to_apply_what_was_exported_changes_nothing(made: list[Definition]) -> None:
    said = {"schedules": [say_schedule(one, Policy()) for one in made]}
    ping = {"name": "ping", "every": 5, "target": {"kind": "shell", "argv": ["é", "0o17"]}}
    text = to_yaml({"schedules": [*said["schedules"], ping]})

    async def go() -> None:
        with tempfile.TemporaryDirectory() as directory:
            async with App(f"sqlite:///{Path(directory) / 'runs.db'}") as app:
                await app.manifests.apply(Manifest.parse(text))
                stored = {it.id: it for it in await app.schedules.list()}
                exported = await app.manifests.export()
                again = await app.manifests.apply(Manifest.parse(to_yaml(exported)))
                after = {it.id: it for it in await app.schedules.list()}

                assert not again.differs
                assert after == stored
                assert await app.manifests.export() == exported
                assert stored.keys() == {one.id for one in made} | {"ping"}

    asyncio.run(go())


def test_a_payload_without_arguments_is_left_out() -> None:
    definition = Definition(
        id="a",
        task="b",
        cadence=Once(instant=datetime(2030, 1, 1, tzinfo=UTC)),
        payload_json=encode_value({}),
    )

    assert say_schedule(definition, Policy()) == {
        "name": "a",
        "at": "2030-01-01T00:00:00Z",
        "task": "b",
    }
    assert decode_value(definition.payload_json) == {}
