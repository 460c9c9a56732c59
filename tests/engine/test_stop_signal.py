"""SIGTERM is heard, whatever the main thread is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from waiting import MAX_WAIT_S

Start = Callable[[str], "subprocess.Popen[str]"]

_ASKED = """
import asyncio, os, signal, socket, sys
from perdure.engine.process.signals import on_stop_signal

def say(word):
    os.write(1, word.encode() + b"\\n")

on_stop_signal(lambda: say("asked"))
"""
_IN_C = """
import hashlib
say("in C")
hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2_000_000_000)  # one call: hours
"""
_TAKEN = """
async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, lambda: None)  # takes the wake-ups
    say("taken")
    await asyncio.Event().wait()

asyncio.run(main())
"""
_LISTENS = """
import threading

def leave():
    sys.stdin.read()
    os._exit(0)

threading.Thread(target=leave).start()
say("listening")
while True:
    pass
"""
_FORKS = """
import warnings
warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    say(str(os.getpid()))
    signal.pause()
    os._exit(0)
_, status = os.waitpid(child, 0)
say(f"child ended by {os.WTERMSIG(status)}")
sys.stdin.read()
"""


@pytest.fixture
def start() -> Iterator[Start]:
    started = []

    def run(script: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", _ASKED + script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        with suppress(ProcessLookupError):
            process.kill()
        process.communicate()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize(("script", "word"), [(_IN_C, "in C"), (_TAKEN, "taken")])
def test_the_first_signal_is_acted_on_once_and_the_second_one_exits_at_once(
    start: Start, script: str, word: str
) -> None:
    """In the middle of one long C call, and where somebody else has taken the wake-ups."""
    process = start(script)
    assert heard(process) == word

    process.send_signal(signal.SIGTERM)
    assert heard(process) == "asked"
    process.send_signal(signal.SIGTERM)

    assert process.wait(MAX_WAIT_S) == 1
    assert heard(process) == ""


def test_one_signal_counts_once_although_it_is_heard_twice(start: Start) -> None:
    process = start(_LISTENS)
    assert heard(process) == "listening"

    process.send_signal(signal.SIGTERM)

    assert heard(process) == "asked"
    process.communicate()
    assert process.returncode == 0


def test_what_a_fork_is_told_is_not_told_to_its_parent(start: Start) -> None:
    process = start(_FORKS)
    os.kill(int(heard(process)), signal.SIGTERM)

    assert heard(process) == f"child ended by {signal.SIGTERM.value}"
    process.communicate()
    assert process.returncode == 0
