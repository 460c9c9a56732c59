"""How a PostgreSQL database is, as far as any user of it may know."""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg

from perdure.core.doctor import Session, Table, Vitals

MOST_SESSIONS = 20

SERVER: LiteralString = """
SELECT 'PostgreSQL ' || current_setting('server_version'), pg_database_size(current_database()),
       current_setting('autovacuum')::boolean"""

TABLES: LiteralString = """
SELECT stat.relname, stat.n_live_tup, stat.n_dead_tup,
       coalesce(NOT tables.reloptions && ARRAY['autovacuum_enabled=false',
                                               'autovacuum_enabled=off'], TRUE)
  FROM pg_stat_user_tables AS stat
  JOIN pg_class AS tables ON tables.oid = stat.relid
 WHERE stat.schemaname = current_schema() AND stat.relname LIKE 'perdure\\_%%'
 ORDER BY stat.relname"""

SESSIONS: LiteralString = """
SELECT 'process ' || pid || coalesce(' (' || nullif(application_name, '') || ')', ''),
       clock_timestamp() - xact_start, state LIKE 'idle%%', backend_xid IS NOT NULL
  FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
   AND backend_type = 'client backend'
 ORDER BY xact_start
 LIMIT %s"""


async def read_vitals(connection: psycopg.AsyncConnection[tuple[Any, ...]]) -> Vitals:
    [[database, size, is_vacuumed]] = await (await connection.execute(SERVER)).fetchall()
    tables = await (await connection.execute(TABLES, ())).fetchall()
    sessions = await (await connection.execute(SESSIONS, (MOST_SESSIONS,))).fetchall()
    return Vitals(
        database=database,
        bytes=size,
        is_vacuumed=is_vacuumed,
        tables=tuple(Table(*row) for row in tables),
        sessions=tuple(Session(*row) for row in sessions),
    )
