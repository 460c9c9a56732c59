"""How `perdure top` looks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from msgspec.structs import replace
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from perdure.core.run.lifecycle import FAILURES, Status
from perdure.engine.inspection.overview import FailureView, Overview, QueueView, WorkerView

BARS = "▁▂▃▄▅▆▇█"
PLACES = 10
"""Characters of a worker's load."""
NARROW = 100
AROUND = 11
"""Lines that are no rows of a table: the head, headings, what separates them, what is left out."""
TABLES = 3
STATES = {"working": "green", "draining": "yellow", "silent": "red"}


class View:
    """`show` prints one frame, `live` takes the terminal for as many as there are."""

    def __init__(self, database: str, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._database = database
        self._last: Overview | None = None

    def show(self, seen: Overview) -> None:
        self._console.print(self._drawn(seen, None, rows=None))

    def live(self) -> Live:
        return Live(console=self._console, screen=True, auto_refresh=False)

    def frame(self, seen: Overview | None, trouble: str | None = None) -> RenderableType:
        """What fits the terminal; in trouble, what was last seen, and why there is nothing new."""
        self._last = seen or self._last
        around = AROUND if trouble is None else AROUND + 2
        rows = max(self._console.size.height - around, TABLES)
        return self._drawn(self._last, trouble, rows)

    def _drawn(self, seen: Overview | None, trouble: str | None, rows: int | None) -> Group:
        parts: list[RenderableType] = []
        if trouble is not None:
            parts += [Text(f" {trouble} ", style="bold white on red", overflow="ellipsis"), ""]
        if seen is not None:
            is_narrow = self._console.width < NARROW
            seen = replace(seen, workers=_unstopped(seen.workers))
            shares = _shares(rows, len(seen.queues), len(seen.workers), len(seen.failures))
            parts += [
                _head(seen, self._database),
                _pace(seen, _seconds(self._console.width)),
                "",
                *_queues(seen.queues, shares[0], is_narrow),
                "",
                *_workers(seen, shares[1], is_narrow),
                *([""] if seen.failures else []),
                *_failures(seen, shares[2], is_narrow),
            ]
        return Group(*parts)


def _unstopped(workers: Sequence[WorkerView]) -> tuple[WorkerView, ...]:
    return tuple(it for it in workers if it.state != "stopped")


def _shares(rows: int | None, *wanted: int) -> list[int]:
    """How many rows each table gets: what it wants, or else a fair part of what there is."""
    if rows is None or sum(wanted) <= rows:
        return list(wanted)
    shares, left = [0] * len(wanted), rows
    for place in sorted(range(len(wanted)), key=lambda it: wanted[it]):
        others = sum(share == 0 for share in shares)
        shares[place] = min(wanted[place], max(left // max(others, 1), 1))
        left -= shares[place]
    return shares


def _head(seen: Overview, database: str) -> RenderableType:
    line = Table.grid(expand=True)
    line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    line.add_column(justify="right", no_wrap=True)
    name = Text.assemble(
        ("perdure ", "bold"), (seen.environment, "bold cyan"), (f"  {database}", "dim")
    )
    line.add_row(name, Text(f"{seen.at:%Y-%m-%d %H:%M:%S} UTC", style="dim"))
    return line


def _seconds(width: int) -> int:
    """How many of the last minute are drawn."""
    return max(15, min(width - 70, 60))


def _pace(seen: Overview, seconds: int) -> RenderableType:
    ended = sum(it.count for it in seen.ended)
    bad = seen.ended_so(*FAILURES)
    good = seen.ended_so(Status.SUCCEEDED)
    live = [it for it in seen.workers if it.state in ("working", "draining")]
    busy, places = sum(it.running for it in live), sum(it.concurrency for it in live)
    return Text.assemble(
        (f"{sum(seen.per_second) / 60:.1f}/s ", "bold"),
        (_sparks(seen.per_second[-seconds:]), "cyan"),
        (f"  {good} succeeded", "green" if good else "dim"),
        (f"  {bad} failed", "bold red" if bad else "dim"),
        (f"  {ended - good - bad} else", "dim"),
        (" in a minute", "dim"),
        (f"  {busy}/{places} busy", "" if live else "bold red"),
        no_wrap=True,
        overflow="ellipsis",
    )


def _sparks(counts: Sequence[int]) -> str:
    most, steps = max(1, *counts), len(BARS) - 1
    return "".join(BARS[-(-count * steps // most)] for count in counts)


def _table(*columns: tuple[str, str], widest: str) -> Table:
    """`widest` takes what the others leave."""
    made = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="bold dim")
    for name, side in columns:
        is_widest = name == widest
        made.add_column(
            name,
            justify="right" if side == ">" else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if is_widest else None,
        )
    return made


def _queues(queues: Sequence[QueueView], rows: int, is_narrow: bool) -> Iterable[RenderableType]:
    columns = [("QUEUE", "<"), ("DUE", ">"), ("RUNNING", ">"), ("PARKED", ">"), ("LATER", ">")]
    columns += [("OLDEST", ">"), ("ENDED/MIN", ">"), ("STATE", "<")]
    made = _table(*columns, widest="STATE")
    made.columns[0].max_width = 20 if is_narrow else 40
    for it in sorted(queues, key=_interest)[:rows]:
        style = "magenta" if it.paused_by else "" if it.due or it.leased or it.ended else "dim"
        oldest = _age(it.oldest_due_seconds) if it.due else "-"
        counts = (_count(it.due), _room(it), _count(it.parked), _count(it.later))
        made.add_row(it.name, *counts, oldest, str(it.ended), _state(it), style=style)
    yield made
    yield from _more(len(queues) - rows)


def _interest(queue: QueueView) -> tuple[bool, int, str]:
    """Where something goes on comes first."""
    work = queue.due + queue.leased + queue.parked + queue.ended
    return (not (work or queue.paused_by), -work, queue.name)


def _room(queue: QueueView) -> str:
    return f"{queue.leased}/{queue.concurrency}" if queue.concurrency else str(queue.leased)


def _state(queue: QueueView) -> str:
    if queue.paused_by:
        because = f": {queue.paused_because}" if queue.paused_because else ""
        return f"paused by {queue.paused_by}{because}"
    return f"{queue.rate} at most" if queue.rate is not None else "open"


def _count(count: int) -> str:
    return "10000+" if count >= 10_000 else str(count)


def _workers(seen: Overview, rows: int, is_narrow: bool) -> Iterable[RenderableType]:
    if not seen.workers:
        yield Text("Nobody works here: perdure worker APP", style="bold red")
        return
    made = _table(("WORKER", "<"), ("PROCESS", "<"), ("LOAD", "<"), ("STATE", "<"), ("SEEN", ">"),
                  ("QUEUES", "<"), widest="QUEUES")  # fmt: skip
    made.columns[0].max_width = 16 if is_narrow else 40
    for it in sorted(seen.workers, key=_liveliness)[:rows]:
        made.add_row(
            it.id,
            f"{it.host}:{it.process_id}",
            _load(it),
            Text(it.state, style=STATES[it.state]),
            _since(it.seen_at, seen.at),
            "all" if it.queues is None else ", ".join(it.queues),
            style="" if it.state in ("working", "draining") else "dim",
        )
    yield made
    yield from _more(len(seen.workers) - rows)


def _liveliness(worker: WorkerView) -> tuple[int, int, str]:
    return (list(STATES).index(worker.state), -worker.running, worker.id)


def _load(worker: WorkerView) -> Text:
    full = -(-PLACES * worker.running // worker.concurrency) if worker.concurrency else 0
    full = min(full, PLACES)
    numbers = f" {worker.running}/{worker.concurrency}"
    return Text.assemble(("█" * full, "cyan"), ("░" * (PLACES - full), "dim"), numbers)


def _failures(seen: Overview, rows: int, is_narrow: bool) -> Iterable[RenderableType]:
    """A run's id is worth its room only where that is left."""
    if not seen.failures:
        return
    columns = [("FAILED", ">"), ("TASK", "<"), ("ERROR", "<"), ("RUN", "<")]
    made = _table(*columns[: 3 if is_narrow else 4], widest="ERROR")
    made.columns[1].max_width = 20 if is_narrow else 40
    for it in seen.failures[:rows]:
        row = (_since(it.at, seen.at), it.task, Text(_line(it), style="red"), it.run_id)
        made.add_row(*row[: 3 if is_narrow else 4])
    yield made
    yield from _more(len(seen.failures) - rows)


def _line(failure: FailureView) -> str:
    mark = "✝ " if failure.status is Status.DEAD_LETTERED else ""
    return mark + " ".join(failure.error.split())


def _more(count: int) -> Iterable[RenderableType]:
    if count > 0:
        yield Text(f"… and {count} more", style="dim")


def _since(then: datetime | None, now: datetime) -> str:
    return "-" if then is None else _age(max((now - then).total_seconds(), 0))


def _age(seconds: float) -> str:
    for length, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
