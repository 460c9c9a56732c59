"""The reference pages that are made from code: lifecycle, seed conformance, errors."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterable, Iterator

from perdure import errors
from perdure.core.run.lifecycle import ARROWS, LEASED, MEANING, TERMINAL, Arrow, EventType, Status
from perdure.core.seed_terms import ALIASES, FAILED_WORDS, WORDS, Seed, StatusFilter
from seeds import SEEDS, Pair, SeedTable

NOTICE = "<!-- Made by scripts/generate_docs.py. Change the code, then run `make docs`. -->"

NO_WORD = "\N{EN DASH}"

_BY_TIME = (Status.QUEUED, Status.SCHEDULED)
_HAPPY: tuple[tuple[Status | str, EventType, Status], ...] = (
    ("[*]", EventType.CREATED, Status.QUEUED),
    (Status.QUEUED, EventType.LEASE_CLAIMED, Status.CLAIMED),
    (Status.CLAIMED, EventType.STARTED, Status.RUNNING),
    (Status.RUNNING, EventType.SUCCEEDED, Status.SUCCEEDED),
    (Status.RUNNING, EventType.RETRY_SCHEDULED, Status.RETRYING),
    (Status.RETRYING, EventType.LEASE_CLAIMED, Status.CLAIMED),
    (Status.RUNNING, EventType.RELEASED, Status.WAITING),
    (Status.WAITING, EventType.DELIVERY_REQUESTED, Status.QUEUED),
)


def lifecycle() -> str:
    return page(
        "Lifecycle",
        "Every status a run can have, every event that can happen to it, and nothing else. "
        "`perdure.core.run.lifecycle` is the source of this page, of the reducer and of its tests.",
        "![The life of a run](../images/lifecycle.svg)",
        "## Statuses",
        _statuses(),
        "A terminal status is final: no event follows it. A leased run belongs to one worker, "
        "proven by its token, until the lease is given up or expires.",
        "## The usual ways",
        _mermaid(_happy()),
        "## Everything a worker does",
        "Arrows into or out of the leased statuses. The diamond asks the time: `queued`, or "
        "`scheduled` if the run is due later. Left out: `cancellation_requested` takes the same "
        f"outcomes as `running`, namely {_names(_same_outcomes())}.",
        _mermaid(_arrows(touches_lease=True)),
        "## Everything that happens while nobody holds it",
        f"Left out: `cancelled`, which may follow at once on {_names(_cancellable())}.",
        _mermaid(_arrows(touches_lease=False)),
        "## Events",
        "`run.created` is the first event of every run and of no other moment; it leads to "
        "`queued`. Whatever this table does not list is refused.",
        _events(),
        "## Aliases",
        "Filters accept the words of the systems Perdure learnt from, beside its own statuses.",
        _aliases(),
    )


def seed_conformance() -> str:
    intro = (
        "Perdure unites four systems, each with a published life of its own. A test walks "
        "thousands of random histories commit by commit, tells each in the words of these "
        "systems, and compares it with what they published. A status without a word there is "
        "left out; equal neighbours count once. Every step is published or declared below, and "
        "the test fails for a declaration that never occurs."
    )
    sections = [part for seed in Seed for part in _seed(seed, SEEDS[seed])]
    return page("Seed conformance", intro, *sections, *_other_differences())


OTHER_DIFFERENCES = (
    (
        "a lease is renewed after half of its length",
        "after a third",
        "if one renewal fails, the next one still comes before the lease expires",
    ),
    (
        "each event has an id of its own",
        "an event is identified by its run and sequence",
        (
            "the pair is unique and ordered, and costs no column and no index. A commit returns "
            "the records that it has appended: `Committed.events`"
        ),
    ),
    (
        "each `run.delivery_requested` writes an outbox row",
        "only a dispatch reservation writes one",
        (
            "workers claim from the runs themselves; the outbox is for push transports alone, and "
            "a push needs a reservation"
        ),
    ),
    (
        "a running run whose lease has expired can be claimed",
        "maintenance recovers it first, then it can be claimed",
        (
            "recovery judges the crash and may end the run; a claim that did both would decide in "
            "storage"
        ),
    ),
    (
        "`queued` runs need no delivery recovery, but `scheduled`, `retrying` and `released` do",
        "only `claimed` and `running` do",
        "a run that is due can be claimed without another delivery request",
    ),
)
"""What a seed does, what Perdure does instead, and the reason. Not about steps between statuses."""


def _other_differences() -> tuple[str, ...]:
    return (
        "## Other differences",
        (
            "They concern Runlane's storage contract. Its status groups and predicates are in "
            "`perdure.core.run.eligibility`: which statuses a scan looks for (runnable, delivery "
            "recovery, cancellation finalisation), from when a run of a group is due, and "
            "whether a dispatch reservation is active or expired."
        ),
        table(("there", "here", "because"), OTHER_DIFFERENCES),
    )


def error_page() -> str:
    doc = inspect.getdoc(errors) or ""
    tree = doc.split("::\n\n")[1].split("\n\n")[0]
    rows = ((f"`{error.__name__}`", _yes(error.retryable), _first(error)) for error in _errors())
    return page(
        "Errors",
        "Everything Perdure raises on purpose is a `PerdureError` from `perdure.errors`. "
        "A retryable one may succeed if the same thing is tried again.",
        f"```text\n{inspect.cleandoc(tree)}\n```",
        table(("error", "retryable", "meaning"), rows),
        "`SequenceConflict`, `InvariantViolation` and `LeaseLost` never stand in for one another: "
        "the first is a lost race, the second a bug or a damaged history, the third the news "
        "that somebody else may own the run now.",
    )


def page(title: str, *parts: str) -> str:
    return "\n\n".join([NOTICE, f"# {title}", *parts]) + "\n"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _statuses() -> str:
    rows = [(f"`{status}`", _class(status), MEANING[status], *_words(status)) for status in Status]
    return table(("status", "class", "meaning", *Seed), rows)


def _class(status: Status) -> str:
    if status in TERMINAL:
        return "terminal"
    return "active, leased" if status in LEASED else "active"


def _words(status: Status) -> tuple[str, ...]:
    words = []
    for seed, word in zip(Seed, WORDS[status], strict=True):
        by_kind = FAILED_WORDS.get(seed, {}) if status is Status.FAILED else {}
        others = [f"{other} ({kind})" for kind, other in by_kind.items()]
        words.append(", ".join([word, *others]) if word else NO_WORD)
    return tuple(words)


def _events() -> str:
    rows: dict[tuple[EventType, str, str], list[str]] = defaultdict(list)
    for arrow in ARROWS.values():
        rows[arrow.event, str(arrow.guard), _targets(arrow)].append(f"`{arrow.source}`")
    return table(
        ("event", "while", "if", "then"),
        (
            (f"`{event}`", ", ".join(sources), guard, targets)
            for (event, guard, targets), sources in rows.items()
        ),
    )


def _targets(arrow: Arrow) -> str:
    if arrow.targets == (arrow.source,):
        return "stays"
    return " or ".join(f"`{target}`" for target in arrow.targets)


def _aliases() -> str:
    return table(
        ("alias", "finds"),
        ((f"`{alias}`", _finds(wanted)) for alias, wanted in ALIASES.items()),
    )


def _finds(wanted: StatusFilter) -> str:
    statuses = " or ".join(f"`{status}`" for status in wanted.statuses)
    kinds = " or ".join(f"`{kind}`" for kind in wanted.kinds)
    return f"{statuses} with failure kind {kinds}" if kinds else statuses


def _mermaid(lines: Iterable[str]) -> str:
    return "\n".join(["```mermaid", "stateDiagram-v2", *(f"    {line}" for line in lines), "```"])


def _happy() -> Iterator[str]:
    yield "direction LR"
    for source, event, target in _HAPPY:
        if isinstance(source, Status):
            assert target in ARROWS[source, event].targets, f"no arrow: {source} {event} {target}"
        yield f"{source} --> {target}: {_short(event)}"
    yield f"{Status.SUCCEEDED} --> [*]"


def _arrows(*, touches_lease: bool) -> Iterator[str]:
    """One line for each pair of statuses, with the events that lead from one to the other."""
    merged: dict[tuple[str, str], list[str]] = defaultdict(list)
    for arrow in ARROWS.values():
        for target in _merged_targets(arrow):
            if _leased(arrow.source, target) is touches_lease and not _is_said_in_words(arrow):
                merged[arrow.source, target].append(_short(arrow.event))
    yield "state by_time <<choice>>"
    yield from (f"by_time --> {status}" for status in _BY_TIME)
    for (source, name), events in merged.items():
        yield f"{source} --> {name}: {', '.join(events)}"


def _merged_targets(arrow: Arrow) -> list[str]:
    """`queued or scheduled` becomes one choice; an event that changes nothing is left out."""
    targets = [target for target in arrow.targets if target is not arrow.source]
    if set(_BY_TIME) <= set(arrow.targets):
        return ["by_time"]
    return [str(target) for target in targets]


def _same_outcomes() -> list[str]:
    """What ends an attempt, whether or not its owner was asked to stop."""
    return [
        arrow.event
        for arrow in ARROWS.values()
        if arrow.source is Status.CANCELLATION_REQUESTED
        and (twin := ARROWS.get((Status.RUNNING, arrow.event))) is not None
        and arrow.targets == twin.targets
    ]


def _cancellable() -> list[str]:
    wanted = EventType.CANCELLED
    return [source for source, event in ARROWS if event is wanted and source not in LEASED]


def _is_said_in_words(arrow: Arrow) -> bool:
    if arrow.source is Status.CANCELLATION_REQUESTED:
        return arrow.event in _same_outcomes()
    return arrow.event is EventType.CANCELLED


def _names(words: list[str]) -> str:
    quoted = [f"`{word.removeprefix('run.')}`" for word in words]
    return f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def _leased(source: Status, target: str) -> bool:
    return source in LEASED or target in LEASED


def _short(event: EventType) -> str:
    return event.removeprefix("run.")


def _seed(seed: Seed, table: SeedTable) -> Iterator[str]:
    yield f"## {seed}"
    steps = len(table.published)
    taken = steps - len(table.unreachable)
    yield (
        f"Published in *{table.source}*: {steps} steps, of which Perdure takes {taken}. "
        f"`(new)` is the moment before the first commit."
    )
    yield "### Steps we take that it did not publish"
    yield _reasons(table.differences)
    yield "### Steps it published that we never take"
    yield _reasons(table.unreachable)


def _reasons(declared: dict[Pair, str]) -> str:
    rows = ((f"`{source}` → `{target}`", reason) for (source, target), reason in declared.items())
    return table(("step", "because"), rows)


def _errors() -> list[type[errors.PerdureError]]:
    found = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.PerdureError)
    ]
    tree = inspect.getdoc(errors) or ""
    missing = [error.__name__ for error in found if error.__name__ not in tree]
    assert not missing, f"not in the tree of perdure.errors: {missing}"
    return found


def _first(error: type[errors.PerdureError]) -> str:
    doc = error.__doc__
    assert doc, f"{error.__name__} has no docstring"
    return " ".join(inspect.cleandoc(doc).split("\n\n")[0].split())


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"
