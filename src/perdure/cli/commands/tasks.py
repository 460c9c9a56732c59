"""`perdure tasks`: list the tasks that apps and workers have made known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perdure.cli import complete as completing
from perdure.cli.database_command import as_data, on_database, shown
from perdure.cli.output.answer import answer
from perdure.cli.output.table import pairs, table

if TYPE_CHECKING:
    from perdure.app.app import App
    from perdure.engine.operators.catalogue import TaskDetails, TaskWorker

task_argument = click.argument("name", metavar="TASK", shell_complete=completing.tasks)


@click.group()
def tasks() -> None:
    """List known tasks: their settings, schemas, versions and workers."""


@tasks.command("list")
@on_database
async def list_tasks(app: App, as_json: bool) -> None:
    """List every task that an app or a worker has made known."""
    found = shown(app, await app.catalogue.list())
    rows = [
        (it.name, it.queue, it.executor, it.version, _format_workers(it), _format_arguments(it))
        for it in found
    ]
    text = table(("TASK", "QUEUE", "EXECUTOR", "VERSION", "WORKERS", "ARGUMENTS"), rows)
    answer(as_json, as_data(found), text if rows else "There are none.")


@tasks.command()
@task_argument
@on_database
async def show(app: App, as_json: bool, name: str) -> None:
    """Show one task with its schemas, and the live workers that know it."""
    task = shown(app, await app.catalogue.get(name))
    answer(as_json, as_data(task), _format_task(task))


def _format_task(task: TaskDetails) -> str:
    from perdure.core.text import in_words

    policy = task.policy
    facts: dict[str, Any] = {
        "task": task.name,
        "aliases": ", ".join(task.aliases),
        "queue": task.queue,
        "executor": task.executor,
        "version": task.version,
        "priority": task.priority,
        "attempts": policy.tries,
        "timeout": None if policy.timeout is None else in_words(policy.timeout),
        "ttl": None if task.ttl is None else in_words(task.ttl),
        "concurrency": task.concurrency,
        "concurrency_per_key": task.concurrency_per_key,
        "rate": task.rate,
        "rate_per_key": task.rate_per_key,
        "target": None if task.target is None else as_data(task.target),
        "defined by": "a manifest" if task.by_manifest else "code",
        "payload": task.payload_schema,
        "result": task.result_schema,
    }
    workers = "\n".join(f"  {_format_worker(worker)}" for worker in task.workers)
    return f"{pairs(facts)}\n\nworkers\n{workers or '  none'}"


def _format_worker(worker: TaskWorker) -> str:
    words = [worker.id, f"{worker.host}:{worker.process_id}"]
    if worker.version is not None:
        words.append(f"version {worker.version}")
    if worker.not_importable is not None:
        words.append(f"cannot import it: {worker.not_importable}")
    return "  ".join(words)


def _format_workers(task: TaskDetails) -> str:
    """How many live workers know it; with the versions, if they differ from the catalogue's."""
    versions = {worker.version for worker in task.workers}
    if versions <= {task.version}:
        return str(len(task.workers))
    told = ", ".join("none" if it is None else str(it) for it in sorted(versions, key=_order))
    return f"{len(task.workers)} (versions {told})"


def _order(version: int | None) -> int:
    return -1 if version is None else version


def _format_arguments(task: TaskDetails) -> str:
    from perdure.engine.tasks.catalogue import payload_arguments

    arguments = payload_arguments(task.payload_schema or {})
    return ", ".join(name if needed else f"[{name}]" for name, needed in arguments.items())
