"""Other processes at work on the same database, told what to do through pipes.

A `Crew` is a number of fresh interpreters. Each is given a scenario (a function of
`scenarios.py`) and a URL, opens the storage, says so, and begins when all of them have. The same
processes play one scenario after another, because starting Python costs more than most scenarios.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import traceback
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

from perdure.engine.runtime.clock import SystemClock
from perdure.storage import open_storage

HERE = Path(__file__).parent

Report = dict[str, Any]


class ProcessFailed(AssertionError):
    """A process ended its scenario with an error; here is its traceback."""


class Member:
    """One process of a crew, spoken to in lines of JSON."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "processes.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ProcessFailed("the process ended without a word")
        message = json.loads(line)
        if isinstance(message, dict) and "error" in message:
            raise ProcessFailed(message["error"])
        return message

    def prepare(self, scenario: str, url: str, arguments: Report) -> None:
        self.tell({"scenario": scenario, "url": url, "arguments": arguments})

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone. What it had said before can still be heard."""
        self.process.kill()
        self.process.wait()

    def last_words(self) -> list[Any]:
        """Whatever a killed process had said in whole lines and nobody had heard, in one list."""
        assert self.process.stdout is not None
        lines = [line for line in self.process.stdout if line.endswith("\n")]
        self.bury()
        return [word for line in lines for word in json.loads(line)]

    def bury(self) -> None:
        self.kill()
        with self.process:
            pass


class Crew:
    """As many processes as were ever asked for at once."""

    def __init__(self) -> None:
        self._members: list[Member] = []

    def play(self, scenario: str, url: str, arguments: Sequence[Report]) -> list[Report]:
        """One process for each of `arguments`, all beginning at once; what each found."""
        while len(self._members) < len(arguments):
            self._members.append(Member())
        cast = self._members[: len(arguments)]
        try:
            for member, own in zip(cast, arguments, strict=True):
                member.prepare(scenario, url, own)
            assert [member.hear() for member in cast] == ["ready"] * len(cast)
            for member in cast:
                member.tell("go")
            return [member.hear() for member in cast]
        except BaseException:
            self.dismiss()  # what the others are still doing is nobody's business any more
            raise

    def dismiss(self) -> None:
        for member in self._members:
            member.bury()
        self._members.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss()


async def _play(scenario: str, url: str, arguments: Report) -> Report:
    import scenarios  # not for the parent: it would be a circle

    async with AsyncExitStack() as stack:
        storage = open_storage(url, SystemClock())
        stack.push_async_callback(storage.close)
        await storage.migrate()
        say("ready")
        sys.stdin.readline()
        report: Report = await getattr(scenarios, scenario)(storage, **arguments)
    return report


def say(message: Any) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    """A member's life: scenario after scenario, until the pipe is closed."""
    for line in iter(sys.stdin.readline, ""):
        message = json.loads(line)
        try:
            report = asyncio.run(_play(**message))
        except Exception:  # noqa: BLE001  # the parent wants to see it, whatever it is
            report = {"error": traceback.format_exc()}
        say(report)


if __name__ == "__main__":
    main()
