"""An attacker in a process of its own: it sends requests until its standard input ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from attack.attackers import Credential, attacker_at
from attack.knowledge import Victim

PART = 40
"""Requests between two looks at the standard input."""
STOP_TIMEOUT_S = 60


class Order(msgspec.Struct, frozen=True):
    address: str
    seed: int
    victim: Victim
    environment: str
    credentials: Sequence[Credential]


class Hammer:
    """The process. `requests` tells how many it sent, once it has ended."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self.requests = 0

    def stop(self) -> None:
        """Raise AssertionError if it met a server error."""
        output, _ = self._process.communicate(timeout=STOP_TIMEOUT_S)
        assert self._process.returncode == 0, self._log.read_text()
        self.requests = int(output)


@contextmanager
def hammering(order: Order, directory: Path) -> Iterator[Hammer]:
    """An attacker that sends from now on, until the block ends."""
    log = directory / "hammer.log"
    command = [sys.executable, "-m", "attack.hammer", msgspec.json.encode(order).decode()]
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=Path(__file__).parent.parent,
        )
    hammer = Hammer(process, log)
    try:
        yield hammer
        hammer.stop()
    finally:
        process.kill()
        process.wait()


async def _hammer(order: Order) -> int:
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    attacker = attacker_at(
        order.address, order.seed, order.victim, order.environment, order.credentials
    )
    async with attacker as it:
        while not ended.done():
            await it.send(PART)
        return it.statuses.total()


if __name__ == "__main__":
    print(asyncio.run(_hammer(msgspec.json.decode(sys.argv[1], type=Order))))
