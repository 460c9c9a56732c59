"""A command's keeper: a small process of its own between the worker and the command.

It ends together with everything the command began, and says so. Nobody else can promise that: a
process group misses whoever left it, and a worker that is killed can clean up nothing. The keeper
adopts orphans (Linux), and when the worker's end of `control` closes, however that happened, it
kills all it has. It lives in an interpreter of its own, one for every command: it imports nothing
of Perdure's, and as little else as it can.

A command may kill its keeper. So the keeper has a guard (Linux): its parent, which adopts what the
keeper leaves behind and kills it. The two watch each other: if the guard is killed, the keeper
ends everything. They are in different sessions and process groups, so no single signal reaches
both. A command that kills both, one right after the other, escapes.

To the keeper: `T` (ask the command to stop), `K` (kill it). From it, once nothing is left:
`code 0`, `signal 9`, or `error …` if the command could not be started.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_AGAIN_SECONDS = 0.01

_buried: dict[int, int] = {}


def main(control: int, argv: list[str]) -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if sys.platform == "linux":
        keeper = os.fork()
        if keeper:
            _guard(keeper)
        os.setsid()
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _keep(control, argv)


def _guard(keeper: int) -> None:
    """Wait for the keeper's end, kill what is left, and exit. `control` stays open until then, so
    the worker hears of the end when nothing is left."""
    signal.signal(signal.SIGTERM, lambda *_: _signal(os.kill, keeper, signal.SIGTERM))
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    _let_go_of_the_streams()
    while _is_stopped(os.waitid(os.P_PID, keeper, os.WEXITED | os.WSTOPPED)):
        os.kill(keeper, signal.SIGKILL)
    while orphans := _orphans(keeper):
        _kill_orphans(orphans)
    os._exit(0)


def _is_stopped(status: os.waitid_result | None) -> bool:
    """Whether the keeper stands still, which only a signal from elsewhere can do."""
    return status is not None and status.si_code in (os.CLD_STOPPED, os.CLD_TRAPPED)


def _keep(control: int, argv: list[str]) -> None:
    parent = os.getppid()
    children = _on_news_of_children()
    command, problem = _start(argv, control)
    # The worker may be gone although `control` is open: a process it had forked may hold it.
    signal.signal(signal.SIGTERM, lambda *_: _leave(command))
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        _leave(command)
    _let_go_of_the_streams()
    if not problem:
        _watch(command, control, children)
    code = os.waitstatus_to_exitcode(_end_all(command))
    if problem:
        _say(control, f"error {problem}")
    else:
        _say(control, f"code {code}" if code >= 0 else f"signal {-code}")


def _start(argv: list[str], control: int) -> tuple[int, str]:
    """The command's process, and what kept it from being one, if anything did."""
    reading, writing = os.pipe()  # closed by a successful exec
    keeper, pid = os.getpid(), os.fork()
    if pid == 0:
        try:
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != keeper:
                os._exit(1)
            os.close(control)
            for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.execvp(argv[0], argv)
        except OSError as error:
            os.write(writing, f"{argv[0]}: {error.strerror}".encode())
        finally:
            os._exit(127)
    os.close(writing)
    with os.fdopen(reading, "rb") as problem:
        return pid, problem.read().decode("utf-8", "replace")


def _watch(command: int, control: int, children: int) -> None:
    """Until the command has ended: by itself, or because it was told to."""
    while not _is_dead(command):
        ready, _, _ = select.select([control, children], [], [])
        if children in ready:
            os.read(children, 4096)
            _bury_orphans(command)
        if control in ready:
            word = os.read(control, 1)
            _signal(os.killpg, command, signal.SIGTERM if word == b"T" else signal.SIGKILL)
            if not word:
                _leave(command)


def _end_all(command: int) -> int:
    """Kill whatever is left, and bury it; the command's status. It is buried last: until then
    its number is nobody else's, and neither is its group's."""
    _signal(os.killpg, command, signal.SIGKILL)
    while not _is_dead(command):
        select.select([], [], [], _LOOK_AGAIN_SECONDS)
    while orphans := _orphans(command):
        _kill_orphans(orphans)
    return _buried[command] if command in _buried else os.waitpid(command, 0)[1]


def _is_dead(command: int) -> bool:
    """Looks, and does not bury."""
    if not hasattr(os, "waitid"):  # macOS: it cannot but bury, and adopts nobody anyway
        if command not in _buried:
            pid, status = os.waitpid(command, os.WNOHANG)
            _buried.update({pid: status} if pid else {})
        return command in _buried
    return os.waitid(os.P_PID, command, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _bury_orphans(command: int) -> None:
    for pid in _orphans(command):
        os.waitpid(pid, os.WNOHANG)


def _kill_orphans(orphans: list[int]) -> None:
    for pid in orphans:
        _signal(os.kill, pid, signal.SIGKILL)
        os.waitpid(pid, os.WNOHANG)
    select.select([], [], [], _LOOK_AGAIN_SECONDS)


def _signal(send: Callable[[int, int], None], whom: int, number: int) -> bool:
    """Whether there was somebody."""
    try:
        send(whom, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # it became another user's: it ends when it likes
        return True
    return True


def _orphans(command: int) -> list[int]:
    """Whom we have adopted; dead or alive."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as listed:
            return [pid for pid in map(int, listed.read().split()) if pid != command]
    except OSError:  # not Linux
        return []


def _leave(command: int) -> None:
    """Nobody would hear what we say."""
    _end_all(command)
    os._exit(1)


def _on_news_of_children() -> int:
    """A descriptor that can be read when a child has ended."""
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def _let_go_of_the_streams() -> None:
    """Their ends are the command's alone, so that they close with it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.close(nothing)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _say(control: int, words: str) -> None:
    os.write(control, words.encode())
