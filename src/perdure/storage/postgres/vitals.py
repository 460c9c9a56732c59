"""How a PostgreSQL database is, as far as any user of it may know."""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg

from perdure.core.explain.health import Session, Table, Vitals

MOST_SESSIONS = 20

SERVER: LiteralString = """
SELECT 'PostgreSQL ' || current_setting('server_version'), pg_database_size(current_database()),
       current_setting('autovacuum')::boolean, current_setting('synchronous_commit') <> 'off',
       current_setting('server_version_num')::integer >= 170000"""

CHECKPOINTS: dict[bool, LiteralString] = {
    False: "SELECT checkpoints_timed, checkpoints_req FROM pg_stat_bgwriter",
    True: "SELECT num_timed, num_requested FROM pg_stat_checkpointer",
}
"""By whether the server is of 17 or newer."""

BROKEN: LiteralString = """
SELECT indexes.relname
  FROM pg_index
  JOIN pg_class AS indexes ON indexes.oid = pg_index.indexrelid
 WHERE NOT indisvalid AND indexes.relnamespace = current_schema()::regnamespace
   AND indexes.relname LIKE 'perdure\\_%%'
 ORDER BY indexes.relname"""

TABLES: LiteralString = """
SELECT stat.relname, stat.n_live_tup, stat.n_dead_tup,
       coalesce(NOT tables.reloptions && ARRAY['autovacuum_enabled=false',
                                               'autovacuum_enabled=off'], TRUE),
       clock_timestamp() - greatest(stat.last_autovacuum, stat.last_vacuum)
  FROM pg_stat_user_tables AS stat
  JOIN pg_class AS tables ON tables.oid = stat.relid
 WHERE stat.schemaname = current_schema() AND stat.relname LIKE 'perdure\\_%%'
 ORDER BY stat.relname"""

SESSIONS: LiteralString = """
SELECT 'process ' || pid || coalesce(' (' || nullif(application_name, '') || ')', ''),
       clock_timestamp() - xact_start AS age, state LIKE 'idle%%', backend_xid IS NOT NULL,
       coalesce(backend_xid, backend_xmin) IS NOT NULL
  FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
   AND backend_type = 'client backend'
UNION ALL
SELECT 'the prepared ' || gid, clock_timestamp() - prepared, TRUE, TRUE, TRUE
  FROM pg_prepared_xacts
 WHERE database = current_database()
 ORDER BY age DESC
 LIMIT %s"""


async def read_vitals(connection: psycopg.AsyncConnection[tuple[Any, ...]]) -> Vitals:
    server = await (await connection.execute(SERVER)).fetchall()
    [[database, size, is_vacuumed, is_durable, is_new]] = server
    [checkpoints] = await (await connection.execute(CHECKPOINTS[is_new])).fetchall()
    broken = await (await connection.execute(BROKEN, ())).fetchall()
    tables = await (await connection.execute(TABLES, ())).fetchall()
    sessions = await (await connection.execute(SESSIONS, (MOST_SESSIONS,))).fetchall()
    return Vitals(
        database=database,
        bytes=size,
        is_vacuumed=is_vacuumed,
        is_durable=is_durable,
        checkpoints=(checkpoints[0], checkpoints[1]),
        broken_indexes=tuple(name for [name] in broken),
        tables=tuple(Table(*row) for row in tables),
        sessions=tuple(Session(*row) for row in sessions),
    )
