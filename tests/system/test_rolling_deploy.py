"""A rolling deploy with real processes: a worker of old code beside triggers of new code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perdure import App, Retry
from waiting import MAX_WAIT_S

pytestmark = pytest.mark.system

ONCE = Retry(max_attempts=1)
OLD_CODE = """
from perdure import App, Retry

app = App()

@app.task(name="greet", version=1, retry=Retry(max_attempts=1))
async def greet(name: str) -> str:
    return f"old {name}"
"""


@contextmanager
def old_worker(url: str, directory: Path) -> Iterator[None]:
    """A worker process that executes version 1."""
    (directory / "old_code.py").write_text(OLD_CODE)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure", "worker", "old_code:app"],
        cwd=directory,
        env=environ | {"PERDURE_URL": url},
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=MAX_WAIT_S)


def code_of(url: str, version: int) -> App:
    """What a client of this version runs; version 2 takes one more optional argument."""
    app = App(url)
    if version == 1:

        @app.task(name="greet", version=1, retry=ONCE)
        async def greet(name: str) -> str:
            return f"old {name}"

    else:

        @app.task(name="greet", version=2, retry=ONCE)
        async def greet_politely(name: str, title: str = "Dr") -> str:
            return f"new {title} {name}"

    return app


async def test_an_old_worker_process_leaves_runs_of_new_code_to_new_workers(
    storage_url: str, tmp_path: Path
) -> None:
    old, new = code_of(storage_url, 1), code_of(storage_url, 2)

    async with old, new:
        newer = [await new.tasks["greet"].trigger(str(n), title="Prof") for n in range(5)]
        older = [await old.tasks["greet"].trigger(str(n)) for n in range(5)]
        with old_worker(storage_url, tmp_path):
            old_results = [await run.result(MAX_WAIT_S) for run in older]
            untouched = [(await new.runs.get(run.id)).counters.claims for run in newer]
            async with new.worker(concurrency=2):
                new_results = [await run.result(MAX_WAIT_S) for run in newer]

    assert old_results == [f"old {n}" for n in range(5)]
    assert untouched == [0] * 5
    assert new_results == [f"new Prof {n}" for n in range(5)]
