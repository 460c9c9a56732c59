"""Carries out an attempt of a shell task: a command, its streams, and how it ended.

Stopping follows the ladder of every attempt: asked is SIGTERM for the command's group, pressed
is SIGKILL for everything it began, given up closes the keeper's control, which kills the same.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from perdure.core.json_text import check_text, decode_value, encode_value
from perdure.core.run.failure import FailureKind
from perdure.engine.attempt.context import Context
from perdure.engine.attempt.target_failure import TargetFailed
from perdure.engine.observability.tracing import current_carrier
from perdure.engine.runtime.secret import SecretNotHad, Secrets
from perdure.engine.targets.dependencies import Surroundings
from perdure.engine.targets.marked_result import keep_both_ends, mark_truncated
from perdure.engine.targets.output_capture import Capture, Lines, drain
from perdure.engine.targets.timing import Laps
from perdure.engine.tasks.target import ShellTarget, Stdout
from perdure.errors import InvalidInput, PayloadTooLarge
from perdure.telemetry import table
from perdure.telemetry.redactor import Mask, Redactor

KEEPER = (
    "import sys; sys.path.append(sys.argv[1]); import shell_reaper; "
    "shell_reaper.main(int(sys.argv[2]), sys.argv[3:])"
)
"""Imported, so that it is compiled only once. Its directory comes last: others' names go first."""
INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER")
"""All that a command finds of the worker's environment."""
ASK = b"T"
KILL = b"K"
MOST_LINES = 1000
LINGER = 1.0
"""Seconds for the streams to close, once nobody is left to hold them."""


async def execute(target: ShellTarget, ctx: Context, around: Surroundings, secrets: Secrets) -> Any:
    """The result. Raises TargetFailed; what was seen is left in the context, also then."""
    try:
        environ = environment(target, ctx, secrets, os.environ)
    except SecretNotHad as error:
        raise TargetFailed("SecretNotUsable", str(error)) from None
    command = Command(target, ctx, secrets.mask(), around.redactor(secrets))
    try:
        said = await command.perform(environ, bytes(ctx.run.payload_json))
    finally:
        ctx.output = command.output()
    return command.result(said, around.result_limit)


def environment(
    target: ShellTarget, ctx: Context, secrets: Secrets, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Little, what the target declares, and which attempt it is."""
    carrier = current_carrier() or ctx.run.trace_carrier or {}
    return {
        **{name: inherited[name] for name in INHERITED if name in inherited},
        **{name: secrets.named_value(name, value) for name, value in target.env.items()},
        "PERDURE_RUN_ID": ctx.run.id,
        "PERDURE_TASK": ctx.run.task,
        "PERDURE_ATTEMPT": str(ctx.attempt),
        "PERDURE_FENCE": str(ctx.fence),
        "PERDURE_IDEMPOTENCY_KEY": ctx.idempotency_key(ctx.run.task),
        **{name: carrier[name] for name in ("traceparent", "tracestate") if name in carrier},
    }


class Command:
    """One command under way."""

    def __init__(self, target: ShellTarget, ctx: Context, mask: Mask, redactor: Redactor) -> None:
        self._target = target
        self._ctx = ctx
        self._mask = mask
        self._redactor = redactor
        self._stdout = Capture(target.output_limit)
        self._stderr = Capture(target.output_limit)
        self._said: dict[str, Any] = {}
        self._lines = 0

    async def perform(self, environ: dict[str, str], payload: bytes) -> dict[str, Any]:
        """What the keeper said when nothing was left. Raises TargetFailed."""
        laps = Laps(self._ctx.timings)
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            with theirs:
                process = await self._start(environ, theirs)
            laps.end("start_command")
            await self._follow(process, payload, reader, writer)
        finally:
            writer.close()  # however this ends: then nothing of it is left running
            laps.end("command")
        return self._said

    async def _follow(
        self,
        process: asyncio.subprocess.Process,
        payload: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        streams = [asyncio.create_task(stream) for stream in self._streams(process, payload)]
        try:
            said, stopped = await _last_word(reader, writer)
            await asyncio.wait(streams, timeout=LINGER)
        finally:
            for stream in streams:
                stream.cancel()
        await process.wait()
        self._said = _read(said)
        if stopped is not None:
            raise stopped
        if not self._said:
            message = "the process that watched over the command was killed"
            raise TargetFailed("KeeperDied", message, kind=FailureKind.CRASH)

    def output(self) -> dict[str, Any]:
        """What is kept with the attempt."""
        output = {
            "exit_code": self._said.get("code"),
            "signal": self._said.get("signal"),
            **self._stdout.shown("stdout", self._redactor),
            **self._stderr.shown("stderr", self._redactor),
        }
        return self._redactor.fields(output)

    def result(self, said: dict[str, Any], limit: int) -> Any:
        """Standard output, if the command ended well. Output that is longer than a limit is a
        failure, or with `truncate` its marked ends. Raises TargetFailed."""
        _check(self._target, said)
        text = self._stdout.text(self._mask)
        if self._stdout.is_truncated:
            problem = f"it has {self._stdout.size} bytes, more than output_limit, "
            problem += f"{self._target.output_limit}; raise output_limit"
            return self._shortened(text, problem, limit)
        try:
            return self._value(text, limit)
        except PayloadTooLarge as error:
            return self._shortened(text, error.problem, limit)

    def _value(self, text: str, limit: int) -> Any:
        """Raises PayloadTooLarge if it has more than `limit` bytes of JSON."""
        if self._target.stdout is Stdout.TEXT:
            said = text.removesuffix("\n")
            encode_value(said, field="standard output", limit=limit)
            return said
        try:
            return decode_value(check_text(text.encode(), field="standard output", limit=limit))
        except PayloadTooLarge:
            raise
        except InvalidInput as error:
            raise TargetFailed("StdoutNotJson", str(error), retryable=False) from None

    def _shortened(self, text: str, problem: str, limit: int) -> dict[str, Any]:
        if not self._target.truncate:
            advice = "or set truncate=True to keep its beginning and its end"
            message = f"standard output is too long: {problem}, {advice}"
            raise TargetFailed("OutputTooLarge", message, retryable=False)
        return mark_truncated(text, limit, keep_both_ends)

    async def _start(
        self, environ: dict[str, str], control: socket.socket
    ) -> asyncio.subprocess.Process:
        here = str(Path(__file__).parent)
        keeper = [sys.executable, "-I", "-S", "-c", KEEPER, here, str(control.fileno())]
        pipe = asyncio.subprocess.PIPE
        try:
            return await asyncio.create_subprocess_exec(
                *keeper, *self._target.argv,
                stdin=pipe, stdout=pipe, stderr=pipe,
                env=environ, cwd=self._target.cwd,
                pass_fds=[control.fileno()], start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            message = f"{error.filename or self._target.argv[0]}: {error.strerror}"
            raise TargetFailed("CannotStart", message) from error

    def _streams(
        self, process: asyncio.subprocess.Process, payload: bytes
    ) -> list[Coroutine[Any, Any, None]]:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        lines = Lines(self._log, self._redactor)
        return [
            _feed(process.stdin, payload),
            drain(process.stdout, self._stdout.add),
            _to_the_end(process.stderr, self._stderr, lines),
        ]

    def _log(self, line: str) -> None:
        """Bounded: whoever writes a million lines must not keep the loop from everybody else."""
        self._lines += 1
        if self._lines <= MOST_LINES:
            self._ctx.log.info("%s", line)
        elif self._lines == MOST_LINES + 1:
            table.LOG_IS_LONG.say_on(self._ctx.log, lines=MOST_LINES)


async def _last_word(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[bytes, asyncio.CancelledError | None]:
    """What the keeper says when nothing is left. Climbs the ladder with the attempt: each
    cancellation is a rung, and the attempt stops only when everything has."""
    hearing = asyncio.ensure_future(_all_of(reader))
    rungs, stopped = [ASK, KILL], None
    try:
        while not hearing.done():
            try:
                await asyncio.shield(hearing)
            except asyncio.CancelledError as error:
                stopped = error
                if rungs:
                    writer.write(rungs.pop(0))
    finally:
        hearing.cancel()
    return hearing.result(), stopped


async def _all_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:  # the keeper was killed
        return b""


def _read(said: bytes) -> dict[str, Any]:
    if not said:
        return {}
    kind, _, rest = said.decode().partition(" ")
    return {kind: rest if kind == "error" else int(rest)}


def _check(target: ShellTarget, said: dict[str, Any]) -> None:
    """Raises TargetFailed unless the command ended with 0."""
    name = Path(target.argv[0]).name
    if "error" in said:
        raise TargetFailed("CannotStart", said["error"])
    if "signal" in said:
        message = f"{name} was killed by {_signal_name(said['signal'])}"
        raise TargetFailed("Killed", message, details={"signal": said["signal"]})
    code = said["code"]
    if code != 0:
        raise TargetFailed(
            f"Exit{code}",
            f"{name} ended with exit code {code}",
            retryable=code not in target.permanent,
            details={"exit_code": code},
        )


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


async def _feed(stdin: asyncio.StreamWriter, payload: bytes) -> None:
    with suppress(ConnectionError):  # it does not have to read
        stdin.write(payload)
        await stdin.drain()
    stdin.close()


async def _to_the_end(stream: asyncio.StreamReader, capture: Capture, lines: Lines) -> None:
    try:
        await drain(stream, capture.add, lines.add)
    finally:
        lines.end()
