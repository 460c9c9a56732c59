"""`perdure top`: one look, a live one, and what fits the terminal."""

from __future__ import annotations

import io
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from rich.console import Console

from command import PERDURE, Shell
from perdure import App, Retry
from perdure.cli.administration.status import status_lines
from perdure.cli.output.top_view import View
from perdure.core.limits.rates import Rate
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Actor, ActorType
from perdure.engine.inspection.overview import FailureView, Overview, QueueView, WorkerView
from perdure.errors import RunFailed
from perdure.storage.contract.inspection import Ended
from terminal import Terminal
from waiting import MAX_WAIT_S

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)
ADA = Actor(ActorType.OPERATOR, "ada")


@pytest_asyncio.fixture
async def app(shell: Shell) -> App:
    """A failure, a paused queue with a run in it, and a run that succeeded."""
    made = App(shell.url)

    @made.task(queue="numbers")
    async def double(number: int) -> int:
        return 2 * number

    @made.task(queue="letters", retry=Retry(max_attempts=1, on_exhausted="dead_letter"))
    async def fragile() -> None:
        raise ValueError("password=hunter2 is broken")

    @made.task(queue="held")
    async def wait() -> None: ...

    async with made.run_all():
        await made.queues.pause("held", "counting again", by=ADA)
        await wait.trigger()
        await double.run(1)
        with pytest.raises(RunFailed):
            await (await fragile.trigger()).result(MAX_WAIT_S)
    return made


def queue(name: str, **fields: Any) -> QueueView:
    known = {
        **{"due": 0, "later": 0, "parked": 0, "leased": 0, "ended": 0, "oldest_due_seconds": 0.0},
        **{"concurrency": None, "rate": None, "paused_by": None, "paused_because": None},
    }
    return QueueView(name=name, **{**known, **fields})


def worker(name: str, **fields: Any) -> WorkerView:
    known = {
        **{"host": "here", "process_id": 7, "state": "working", "running": 1, "concurrency": 4},
        **{"queues": None, "seen_at": NOON, "started_at": NOON},
    }
    return WorkerView(id=name, **{**known, **fields})


def failure(number: int) -> FailureView:
    at = NOON - timedelta(minutes=number)
    return FailureView(
        run_id=f"run_{number:032}", task="fetch", status=Status.FAILED, at=at, error="x" * 200
    )


def seen(**fields: Any) -> Overview:
    known = {"at": NOON, "environment": "default", "queues": (), "workers": (), "failures": ()}
    return Overview(**{**known, "ended": (), **fields})


def drawn(overview: Overview | None, width: int, height: int, trouble: str | None = None) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, height=height)
    console.print(View("sqlite:///runs.db", console).frame(overview, trouble))
    return file.getvalue()


async def test_one_look_tells_queues_failures_and_throughput(app: App, shell: Shell) -> None:
    told = shell.perdure("top", "--once", COLUMNS="80")

    lines = {line.split()[0]: line for line in told.out.splitlines() if line.strip()}
    assert told.code == 0
    assert "paused by ada: counting again" in lines["held"]
    assert lines["numbers"].split()[1:] == ["0", "0", "0", "0", "-", "1", "open"]
    assert "ValueError: password=[redacted] is broken" in told.out
    assert "1 succeeded  1 failed" in told.out
    assert max(map(len, told.out.splitlines())) <= 80


async def test_the_same_as_one_document(app: App, shell: Shell) -> None:
    data = shell.perdure("top", "--json").json

    queues = {it["name"]: it for it in data["queues"]}
    assert (queues["held"]["due"], queues["held"]["paused_by"]) == (1, "ada")
    assert queues["letters"]["ended"] == 1
    assert [it["task"] for it in data["failures"]] == ["fragile"]
    assert {it["state"] for it in data["workers"]} == {"stopped"}
    assert sum(it["count"] for it in data["ended"]) == 2


async def test_it_goes_on_until_q(app: App, shell: Shell) -> None:
    command = [*PERDURE, "top"]

    with Terminal(command, cwd=shell.directory, env=shell.environ(), columns=80) as terminal:
        terminal.wait_for("Nobody works here")
        async with app, app.worker(concurrency=3) as working:
            await app.tasks["double"].options(queue="fresh").run(2)
            terminal.wait_for(working.id[:14])
            terminal.wait_for("fresh")
        terminal.type("q")
        code = terminal.end()

    assert code == 0
    assert "\x1b[?1049l" in terminal.raw[-40:]  # the screen is as it was before


async def test_ctrl_c_ends_it_too(app: App, shell: Shell) -> None:
    with Terminal([*PERDURE, "top"], cwd=shell.directory, env=shell.environ()) as terminal:
        terminal.wait_for("QUEUE")
        terminal.type("\x03")
        terminal.end()

    assert "Traceback" not in terminal.text
    assert "\x1b[?1049l" in terminal.raw


async def test_without_a_terminal_it_says_what_to_do(app: App, shell: Shell) -> None:
    answer = shell.perdure("top")

    assert answer.code == 2
    assert "top draws on a terminal; elsewhere, say --once or --json" in answer.err


def test_without_rich_it_says_what_to_install(app: App, shell: Shell) -> None:
    code = "import sys; sys.modules['rich'] = None; from perdure.cli.main import main; main()"

    done = subprocess.run(
        [sys.executable, "-c", code, "top", "--once"],
        env=shell.environ(),
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_S,
    )

    assert done.returncode == 2
    assert "pip install 'perdure[cli]'" in done.stderr


@pytest.mark.parametrize("trouble", [None, "the database does not answer"])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 16), (140, 50), (200, 24)])
def test_a_frame_fits_the_terminal(width: int, height: int, trouble: str | None) -> None:
    full = seen(
        queues=tuple(queue(f"queue-{n}", due=n, parked=12_000, leased=3) for n in range(60)),
        workers=tuple(worker(f"worker_{n:032}", running=n) for n in range(30)),
        failures=tuple(failure(n) for n in range(20)),
        ended=(Ended(NOON - timedelta(seconds=3), Status.SUCCEEDED, 1200),),
    )

    lines = drawn(full, width, height, trouble).splitlines()

    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert sum("more" in line for line in lines) == 3


def test_what_has_something_to_do_comes_first() -> None:
    idle, busy = queue("a-idle"), queue("z-busy", due=3, oldest_due_seconds=125)

    text = drawn(seen(queues=(idle, busy)), 100, 30)

    assert text.index("z-busy") < text.index("a-idle")
    assert "2 m" in text


def test_limits_loads_and_states_are_told() -> None:
    limited = queue("mail", leased=5, concurrency=20, rate=Rate(100, per=60), later=3)
    workers = (
        worker("worker_full", running=4),
        worker("worker_quiet", state="silent", running=0, queues=("mail", "other")),
        worker("worker_gone", state="stopped"),
    )

    text = drawn(seen(queues=(limited,), workers=workers), 140, 40)

    assert "5/20" in text
    assert "100/1m at most" in text
    assert "██████████ 4/4" in text
    assert "░░░░░░░░░░ 0/4" in text
    assert "silent" in text
    assert "mail, other" in text
    assert "worker_gone" not in text


def test_top_and_status_count_no_slots_of_a_silent_worker() -> None:
    workers = (worker("worker_full", running=4), worker("worker_quiet", state="silent", running=0))
    overview = seen(workers=workers)

    assert "4/4 busy" in drawn(overview, 140, 40)
    assert "1 silent, 1 working; 4 of 4 slots used" in status_lines(overview)["workers"]


def test_the_throughput_of_a_minute_is_drawn() -> None:
    ended = (
        Ended(NOON - timedelta(seconds=60), Status.SUCCEEDED, 30),
        Ended(NOON - timedelta(seconds=1), Status.FAILED, 60),
        Ended(NOON, Status.SUCCEEDED, 7),  # in the second that is not over
    )

    [_, line, *_] = drawn(seen(ended=ended), 140, 40).splitlines()

    assert line.startswith("1.5/s ▅▁▁")
    assert "▁█  37 succeeded  60 failed  0 else in a minute" in line


def test_in_trouble_the_last_look_stays() -> None:
    file = io.StringIO()
    console = Console(file=file, width=100, height=30)
    view = View("sqlite:///runs.db", console)

    view.frame(seen(queues=(queue("mail", due=1),)))
    console.print(view.frame(None, "the database does not answer"))

    assert "the database does not answer" in file.getvalue()
    assert "mail" in file.getvalue()


def test_before_the_first_look_trouble_is_all_there_is() -> None:
    assert drawn(None, 80, 24, "no answer").strip() == "no answer"
