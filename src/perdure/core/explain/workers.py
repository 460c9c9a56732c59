"""Whether anybody could take a run, as far as the registry of workers tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perdure.core.explain.inputs import MOST_NAMED, Facts, SeenWorker
from perdure.core.explain.reason import Code, Reason
from perdure.core.run.run import Run


def missing_workers(facts: Facts) -> Iterator[Reason]:
    """Nobody there, or nobody who knows the task, or serves the queue, or has a place."""
    run = facts.run
    live = [worker for worker in facts.workers if worker.is_live]
    knowing = [worker for worker in live if run.task in worker.tasks]
    able = [it for it in knowing if it.versions.get(run.task, 0) >= run.required_version]
    serving = [it for it in able if it.queues is None or run.queue in it.queues]
    if serving and all(run.task in worker.not_importable for worker in serving):
        yield _not_importable(run.task, serving)
    elif serving:
        yield from _busy(serving) if facts.is_due else ()
    elif knowing and not able:
        yield _too_old(run, knowing)
    elif knowing:
        words = f"No live worker that knows task {run.task} serves queue {run.queue}."
        yield _about(Code.NO_WORKER_FOR_QUEUE, words, knowing, queue=run.queue)
    elif not facts.is_known_task:
        words = f"No app has ever said here that it knows task {run.task}."
        yield _about(Code.UNKNOWN_TASK, words, [], task=run.task)
    elif live:
        words = f"None of the live workers knows task {run.task}."
        yield _about(Code.NO_WORKER_FOR_TASK, words, live, task=run.task)
    else:
        yield _about(Code.NO_WORKER, "There is no live worker.", list(facts.workers))


def _too_old(run: Run, knowing: Sequence[SeenWorker]) -> Reason:
    known = sorted({worker.versions.get(run.task, 0) for worker in knowing})
    needed = f"version {run.required_version} or newer of task {run.task}"
    listed = f"version {known[0]}" if len(known) == 1 else f"versions {', '.join(map(str, known))}"
    said = "no version" if known == [0] else listed
    words = f"It waits for a worker with {needed}; live workers know {said} of it."
    return _about(Code.NO_WORKER_FOR_VERSION, words, knowing, task=run.task)


def _not_importable(task: str, workers: Sequence[SeenWorker]) -> Reason:
    problem = workers[0].not_importable[task].rstrip(".")
    words = f"No live worker that serves it can import its handler: {problem}."
    return _about(Code.NOT_IMPORTABLE, words, workers, task=task)


def _busy(workers: Sequence[SeenWorker]) -> Iterator[Reason]:
    staying = [worker for worker in workers if not worker.is_stopping]
    if not staying:
        words = "Every worker that could take it is stopping."
        yield _about(Code.WORKERS_STOPPING, words, workers)
    elif all(worker.running >= worker.concurrency for worker in staying):
        words = "Every worker that could take it had all its places taken when last heard of."
        yield _about(Code.WORKERS_FULL, words, staying)


def _about(
    code: Code,
    words: str,
    workers: Sequence[SeenWorker],
    *,
    queue: str | None = None,
    task: str | None = None,
) -> Reason:
    return Reason(
        code=code,
        sentence=words,
        queue=queue,
        task=task,
        count=len(workers),
        workers=tuple(worker.id for worker in workers[:MOST_NAMED]),
    )
