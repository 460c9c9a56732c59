"""Statements that travel together, straight through libpq. A cursor for each would cost the client
more than running them costs the server, most of all one that has just woken up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import count
from typing import Any, NamedTuple

import psycopg
from psycopg import pq, waiting
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import FeatureNotSupported, InvalidSqlStatementName, error_from_result
from psycopg.pq.abc import PGconn, PGresult

from perdure.storage.sql.queries import PARAMETER
from perdure.storage.sql.statements import Rows

MOST_FORMS = 200
"""Of statements that a connection counts and prepares: with conditions there are many."""

FORGOTTEN = (InvalidSqlStatementName, FeatureNotSupported)
"""What a server says of a prepared statement that it does not know any more, or whose answer has
other types since a migration. Prepared anew, it will do."""

Form = tuple[bytes, tuple[int, ...]]
"""A text, and the types of its parameters."""

Spelt = tuple[bytes, Sequence[Buffer | None], tuple[int, ...], Sequence[int] | None]
"""A text, the values of its parameters, their types and formats."""


class Asked(NamedTuple):
    """A text with `:name` parameters, and their values."""

    text: str
    parameters: Mapping[str, Any]


class Pipeline:
    """Of one connection, which nobody else uses meanwhile."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self._values = Transformer.from_context(connection)
        self._uses: dict[Form, int] = {}
        self._prepared: dict[Form, bytes] = {}
        self._numbers = count(1)

    async def run(self, queries: Sequence[Asked], behind: Sequence[Asked] = ()) -> list[Rows]:
        """The rows of each; of an update that answers nothing, an empty one for each that it moved.
        Raises what the first that failed did; what came after it was not run. What goes `behind`
        is a transaction of its own, in any case; how that ended, nobody is told."""
        server = self._connection.pgconn
        # All of it before any of it: what cannot be spelt leaves nothing half sent.
        spelt = [self._spelt(query) for query in queries]
        spelt_behind = [self._spelt(query) for query in behind]
        new: dict[Form, bytes] = {}
        try:
            server.enter_pipeline_mode()
            prepared = [self._send(server, statement, new) for statement in spelt]
            server.pipeline_sync()
            for text, given, types, formats in spelt_behind:
                server.send_query_params(text, given, types, formats)
            if behind:
                server.pipeline_sync()
            answers = await self._connection.wait(_answers(server, 1 + bool(behind)))
            server.exit_pipeline_mode()
        except BaseException:
            # In the middle of a pipeline there is no way back; the pool makes another connection.
            await self._connection.close()
            raise
        return self._read_all(iter(answers), prepared)

    def _send(
        self, server: PGconn, statement: Spelt, new: dict[Form, bytes]
    ) -> tuple[Form, bytes] | None:
        """The form that is prepared with it, if so, and by what name. `new`: those of this trip."""
        text, given, types, formats = statement
        form = (text, types)
        name = self._prepared.get(form) or new.get(form)
        is_new = name is None and self._is_usual(form)
        if is_new:
            name = new[form] = b"perdure_%d" % next(self._numbers)
            server.send_prepare(name, text, types)
        if name is None:
            server.send_query_params(text, given, types, formats)
            return None
        server.send_query_prepared(name, given, formats)
        return (form, name) if is_new else None

    def _spelt(self, query: Asked) -> Spelt:
        text, names = _numbered(query.text)
        values = [query.parameters[name] for name in names]
        given = self._values.dump_sequence(values, (PyFormat.AUTO,) * len(names))
        return text, given, self._values.types or (), self._values.formats

    def _is_usual(self, form: Form) -> bool:
        """Whether it has been sent so often that the server should know it."""
        threshold = self._connection.prepare_threshold
        if threshold is None or (form not in self._uses and len(self._uses) == MOST_FORMS):
            return False
        self._uses[form] = self._uses.get(form, 0) + 1
        return self._uses[form] > threshold

    def _read_all(
        self, answers: Iterator[PGresult], prepared: Sequence[tuple[Form, bytes] | None]
    ) -> list[Rows]:
        try:
            return [self._read(answers, made) for made in prepared]
        except FORGOTTEN:
            self._prepared.clear()
            raise

    def _read(self, answers: Iterator[PGresult], made: tuple[Form, bytes] | None) -> Rows:
        if made is not None:
            self._checked(next(answers))
            form, name = made
            self._prepared[form] = name  # not before: the server may have skipped it
        answer = self._checked(next(answers))
        if answer.status == pq.ExecStatus.COMMAND_OK:
            return [()] * (answer.command_tuples or 0)
        self._values.set_pgresult(answer)
        return self._values.load_rows(0, answer.ntuples, tuple) if answer.ntuples else []

    def _checked(self, answer: PGresult) -> PGresult:
        if answer.status == pq.ExecStatus.FATAL_ERROR:
            raise error_from_result(answer, self._values.encoding)
        return answer


@cache
def _numbered(text: str) -> tuple[bytes, tuple[str, ...]]:
    """As the server wants it, and the names of its parameters in the order of their numbers."""
    names = tuple(dict.fromkeys(PARAMETER.findall(text)))
    return PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", text).encode(), names


def _answers(server: PGconn, ends: int) -> PQGen[list[PGresult]]:
    """Send what is still to be sent, then read until that many transactions have ended."""
    while server.flush():
        if (yield waiting.Wait.RW) & waiting.Ready.R:
            server.consume_input()  # or both sides would wait for the other to read
    answers: list[PGresult] = []
    while True:
        while server.is_busy():
            yield waiting.Wait.R
            server.consume_input()
        answer = server.get_result()
        if answer is None:
            _check_connection(server)
        elif answer.status != pq.ExecStatus.PIPELINE_SYNC:
            answers.append(answer)
        elif (ends := ends - 1) == 0:
            return answers


def _check_connection(server: PGconn) -> None:
    if server.status == pq.ConnStatus.BAD:
        raise psycopg.OperationalError(server.get_error_message())
