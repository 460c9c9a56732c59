"""The instrument that measures the CPU time of event-loop callbacks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx

import loop_cpu
from loop_cpu import Callback, longest_callback, measure_callbacks, read_report, resident_bytes
from waiting import MAX_WAIT_S
from web_kit import _Log


def spin(cpu_s: float) -> None:
    """Use so much CPU, however long it takes."""
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass


async def test_a_callback_over_the_limit_is_reported_with_its_cpu_time() -> None:
    slow: list[Callback] = []
    done = asyncio.Event()

    with measure_callbacks(slow.append, limit_s=0.05) as measured:
        asyncio.get_running_loop().call_soon(spin, 0.06)
        asyncio.get_running_loop().call_soon(done.set)
        await done.wait()

    [spun] = [callback for callback in slow if "spin" in callback.description]
    assert spun.cpu_s >= 0.06
    assert spun.thread == threading.current_thread().name
    assert measured.longest_s >= spun.cpu_s
    assert measured.callbacks >= 2


async def test_work_on_another_thread_is_not_counted() -> None:
    slow: list[Callback] = []

    with measure_callbacks(slow.append, limit_s=0.05) as measured:
        await asyncio.to_thread(spin, 0.06)

    assert measured.callbacks
    assert not [callback for callback in slow if "spin" in callback.description]


async def test_afterwards_nothing_is_measured() -> None:
    with measure_callbacks(lambda callback: None) as measured:
        await asyncio.sleep(0)
    await asyncio.sleep(0)  # the callback that was still measured ends
    before = measured.callbacks

    await asyncio.sleep(0)

    assert measured.callbacks == before


def test_a_measured_server_serves_and_reports(tmp_path: Path) -> None:
    report, script = tmp_path / "report", Path(loop_cpu.__file__)
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    command = [sys.executable, str(script), str(report), "server", "--json", "--port", "0"]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")}
    process = subprocess.Popen(
        [*command, "--url", url], stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environ
    )
    log = _Log(process, tmp_path / "server.log")
    try:
        answer = httpx.get(f"{log.address()}/v1/runs", timeout=MAX_WAIT_S)
        memory = resident_bytes(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=MAX_WAIT_S)
        log.join()

    assert answer.json() == {"items": [], "cursor": None}
    assert memory > 1_000_000
    assert longest_callback(report) in read_report(report)
    assert process.returncode == 0
