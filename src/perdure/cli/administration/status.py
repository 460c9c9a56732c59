"""`perdure status`: whether work goes on, in a few lines."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from perdure.cli.database_command import on_database
from perdure.cli.output.answer import answer
from perdure.cli.output.table import pairs

if TYPE_CHECKING:
    from perdure.app.app import App
    from perdure.engine.inspection.overview import Overview

SERVICES = ("maintenance", "scheduler")


@click.command()
@on_database
async def status(app: App, as_json: bool) -> None:
    """Show last ticks, the next schedule, expired leases, workers and queues.

    With --json, the same document as `perdure top --json`.
    """
    import msgspec

    overview = await app.overview()
    answer(as_json, msgspec.to_builtins(overview), pairs(status_lines(overview)))


def status_lines(overview: Overview) -> dict[str, str]:
    ticks = {service: _last_tick(overview, service) for service in SERVICES}
    return {
        "environment": overview.environment,
        "server": _server(overview),
        **ticks,
        "workers": _workers(overview),
        "queues": _queues(overview),
        "next schedule": _next_schedule(overview),
        "expired leases": str(overview.expired_leases),
        "dead letters": f"{overview.dead_letters} open",
    }


def _server(overview: Overview) -> str:
    started_at = overview.server_started_at
    return "" if started_at is None else f"started {_ago(started_at, overview.at)}"


def _last_tick(overview: Overview, name: str) -> str:
    for service in overview.services:
        if service.name == name and service.ticked_at is not None:
            process = f"{service.host}:{service.process_id}"
            started = _ago(service.started_at, overview.at)
            return f"last tick {_ago(service.ticked_at, overview.at)}, {process}, started {started}"
    return "no tick yet"


def _workers(overview: Overview) -> str:
    workers = [worker for worker in overview.workers if worker.state != "stopped"]
    if not workers:
        return "none"
    states = Counter(worker.state for worker in workers)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    live = [worker for worker in workers if worker.state != "silent"]
    running, slots = sum(it.running for it in live), sum(it.concurrency for it in live)
    first = min(worker.started_at for worker in workers)
    return f"{counts}; {running} of {slots} slots used; first started {_ago(first, overview.at)}"


def _queues(overview: Overview) -> str:
    queues = overview.queues
    due, parked = sum(it.due for it in queues), sum(it.parked for it in queues)
    return f"{len(queues)}; {due} runs due, {parked} parked, {sum(it.leased for it in queues)} held"


def _next_schedule(overview: Overview) -> str:
    first = overview.next_schedule
    if first is None:
        return "none"
    late = first.at <= overview.at
    when = (
        f"due since {_duration(overview.at - first.at)}"
        if late
        else (f"in {_duration(first.at - overview.at)}")
    )
    return f"{first.schedule_id}, {when}"


def _ago(at: datetime, now: datetime) -> str:
    return f"{_duration(now - at)} ago"


def _duration(length: timedelta) -> str:
    seconds = max(length.total_seconds(), 0.0)
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{seconds:.0f} s"
