"""Which suspects a worker tries, when it tries them again, and the processes for them."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from builders import a_run, run_id
from perdure.core.run.lifecycle import Status
from perdure.engine.worker.isolation import (
    DRAIN_TIMEOUT_S,
    FIRST_PAUSE_S,
    MAX_ALONE_S,
    MAX_PAUSE_S,
    Isolation,
)
from perdure.engine.worker.suspect_processes import (
    HEAD_START_S,
    MAX_PROCESSES,
    STOP_MARGIN,
    SuspectProcesses,
)

RUN, OTHER = a_run(Status.RUNNING), run_id(2)


class Elapsed:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Places:
    """A starter with room for so many processes, which keeps what was started."""

    def __init__(self, room: int = 10, head_start_s: float = 0.0) -> None:
        self.room = room
        self.head_start_s = head_start_s
        self.started: list[str] = []

    def start(self, run_id: str) -> bool:
        if len(self.started) == self.room:
            return False
        self.started.append(run_id)
        return True

    async def stop(self) -> None:
        self.room = 0


def test_a_suspect_that_stays_due_is_tried_less_and_less_often() -> None:
    elapsed, starter = Elapsed(), Places()
    isolation = Isolation(elapsed, starter)
    times: list[float] = []

    for second in range(300):
        elapsed.now = float(second)
        isolation.offer([OTHER])
        if len(starter.started) > len(times):
            times.append(elapsed.now)

    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses == [FIRST_PAUSE_S, 20, 40, 80, MAX_PAUSE_S]


def test_a_suspect_that_was_away_meanwhile_is_tried_at_once() -> None:
    starter = Places()
    isolation = Isolation(Elapsed(), starter)

    for due in ([OTHER], [OTHER], [], [OTHER]):
        isolation.offer(due)

    assert starter.started == [OTHER, OTHER]


def test_a_suspect_for_which_there_was_no_room_is_tried_with_the_next_offer() -> None:
    starter = Places(room=1)
    isolation = Isolation(Elapsed(), starter)

    isolation.offer([RUN.id, OTHER])
    starter.room = 2
    isolation.offer([RUN.id, OTHER])

    assert starter.started == [RUN.id, OTHER]


def test_later_processes_of_a_pool_leave_a_suspect_to_earlier_ones() -> None:
    elapsed, starter = Elapsed(), Places(head_start_s=HEAD_START_S)
    isolation = Isolation(elapsed, starter)

    isolation.offer([OTHER])
    at_first = list(starter.started)
    elapsed.now += HEAD_START_S
    isolation.offer([OTHER])

    assert (at_first, starter.started) == ([], [OTHER])


@pytest.fixture
def elapsed() -> Elapsed:
    return Elapsed()


@pytest.fixture
def alone(elapsed: Elapsed) -> Isolation:
    """A worker that starts no processes, and has been offered a suspect."""
    isolation = Isolation(elapsed, None)
    isolation.offer([RUN.id])
    return isolation


def test_a_worker_without_processes_executes_a_suspect_once_it_is_free(alone: Isolation) -> None:
    assert not alone.allows_others([], is_claiming=False)
    assert alone.take(is_busy=True) is None
    assert alone.take(is_busy=False) == RUN.id
    assert not alone.allows_others([RUN], is_claiming=False)
    assert alone.allows_others([], is_claiming=False)


def test_it_does_not_wait_for_others_for_ever(alone: Isolation, elapsed: Elapsed) -> None:
    elapsed.now += DRAIN_TIMEOUT_S

    assert alone.take(is_busy=True) == RUN.id
    assert not alone.allows_others([RUN], is_claiming=False)
    elapsed.now += MAX_ALONE_S
    assert alone.allows_others([RUN], is_claiming=False)


def test_it_does_not_stop_its_work_again_for_a_suspect_that_it_did_not_get(
    alone: Isolation,
) -> None:
    assert alone.take(is_busy=False) == RUN.id
    alone.offer([RUN.id])

    assert alone.allows_others([], is_claiming=False)
    assert alone.take(is_busy=False) is None


def test_only_a_worker_that_has_to_do_with_a_suspect_looks_again(elapsed: Elapsed) -> None:
    """Else each heartbeat would make a claim."""
    isolation, with_processes = Isolation(elapsed, None), Isolation(elapsed, Places())

    assert [with_processes.offer(due) for due in ([], [RUN.id])] == [False, False]
    assert [isolation.offer(due) for due in ([], [RUN.id], [], [])] == [False, True, True, False]


# Processes

WAITING = "import sys; sys.stdin.read()"
DEAF = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").close()
time.sleep(3600)
"""
"""A process that says so once it ignores SIGTERM."""


def pids(caplog: pytest.LogCaptureFixture) -> Iterator[int]:
    for record in caplog.records:
        if "executes alone in process" in record.getMessage():
            yield record.__dict__["pid"]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_four_suspects_execute_at_a_time_and_a_stop_leaves_no_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    processes = SuspectProcesses([sys.executable, "-c", WAITING], timedelta(minutes=1))

    answers = [processes.start(run_id(number)) for number in (1, 1, 2, 3, 4, 5, 6)]
    await processes.stop()

    assert answers == [True, False, True, True, True, False, False]
    assert len(found := list(pids(caplog))) == MAX_PROCESSES
    assert not any(map(is_alive, found))
    assert not processes.start(run_id(7))


async def test_a_process_that_does_not_end_is_killed(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO)
    os.mkfifo(tmp_path / "deaf")
    command = [sys.executable, "-c", DEAF, str(tmp_path / "deaf")]
    processes = SuspectProcesses(command, -STOP_MARGIN)
    processes.start(RUN.id)
    await asyncio.to_thread((tmp_path / "deaf").read_text)

    await processes.stop()

    [pid] = pids(caplog)
    assert not is_alive(pid)


async def test_a_process_that_cannot_be_started_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    processes = SuspectProcesses(["/nowhere/python"], timedelta(0))

    assert processes.start(RUN.id)
    await processes.stop()

    assert f"run {RUN.id} gets no process of its own" in caplog.text
