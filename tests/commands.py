"""Commands for shell tasks, each as unpleasant as its name says: `python commands.py NAME BELL`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

from bell import ring, wait_at, wait_for_word

HERE = os.path.abspath(__file__)


def command(name: str, bell: str) -> list[str]:
    return [sys.executable, HERE, name, bell]


def polite(bell: str) -> None:
    """Ends when asked to, and says so."""

    def leave(*_: object) -> None:
        print("bye", flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)
    wait_at(bell, str(os.getpid()))


def stubborn(bell: str) -> None:
    """Does not end when asked to."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait_at(bell, str(os.getpid()))


def outsider(bell: str) -> None:
    """In a session of its own, and nobody's child: its parent has gone."""
    if os.fork():
        os._exit(0)
    os.setsid()
    stubborn(bell)


def family(bell: str) -> None:
    """A stubborn one with a stubborn child and an outsider, who all hold the pipes open."""
    for name in ("stubborn", "outsider"):
        subprocess.Popen(command(name, bell))
    stubborn(bell)


def careless(bell: str) -> None:
    """Ends well, and leaves two behind."""
    for name in ("stubborn", "outsider"):
        subprocess.Popen(command(name, bell))
    wait_at(bell, "leaving")
    print("done", flush=True)


def prolific(bell: str) -> None:
    """Has a child after the other that is orphaned and dies, while it lives."""
    for _ in range(20):
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()
            os._exit(0)
        with suppress(ChildProcessError):
            os.wait()
    ring(bell, str(os.getppid()))
    wait_at(bell)


def assassin(bell: str) -> None:
    """Leaves an outsider behind, and attacks what watches over it as the test says."""
    subprocess.Popen(command("outsider", bell))
    attack = wait_for_word(bell, "assassin")
    keeper = os.getppid()
    match attack:
        case "kill the keeper":
            os.kill(keeper, signal.SIGKILL)
        case "kill the guard":
            os.kill(parent_of(keeper), signal.SIGKILL)
        case "kill the keeper's group":
            os.killpg(os.getpgid(keeper), signal.SIGKILL)
        case "stop the keeper":
            os.kill(keeper, signal.SIGSTOP)
    stubborn(bell)


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
