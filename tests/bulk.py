"""Many runs at once, written past the adapter: copies of one real run, under ids and keys of
their own. Made inside the database, a hundred thousand take seconds."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import psycopg

COLUMNS = """
    environment, queue, task, priority, status, sequence, claimable_at, attention_at, lease_token,
    lease_worker, lease_expires_at, holds_slot, gate, created_at, finished_at, schedule_id,
    batch_id, parent_id, failure_kind, fingerprint, state
"""
SERIES = """
WITH RECURSIVE series (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM series WHERE n < :last)
"""
SQLITE = (
    f"""
INSERT INTO perdure_runs (id, concurrency_key, {COLUMNS}) {SERIES}
SELECT printf('run_%012x7%03x8%015x', 1750000000000 + n / 10, n * 1103 % 4096, n), :key, {COLUMNS}
  FROM series CROSS JOIN perdure_runs AS runs WHERE runs.id = :template
""",
    f"""
INSERT INTO perdure_history (run_id, first_sequence, commit_id, events) {SERIES}
SELECT made.id, first_sequence, commit_id,
       replace(replace(events, :template, made.id), '"of-the-template"', :quoted_key)
  FROM (SELECT printf('run_%012x7%03x8%015x', 1750000000000 + n / 10, n * 1103 % 4096, n) AS id
          FROM series) AS made
 CROSS JOIN perdure_history AS history WHERE history.run_id = :template
""",
)
IDS = """
WITH ids AS MATERIALIZED (
    SELECT lpad(to_hex(1750000000000 + n / 10), 12, '0') || '7'
           || lpad(to_hex(n * 1103 %% 4096), 3, '0') || '8' || lpad(to_hex(n), 15, '0') AS id
      FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n)
"""
POSTGRES = (
    f"""
INSERT INTO perdure_runs (id, concurrency_key, {COLUMNS}) {IDS}
SELECT ids.id::uuid, %(key)s, {COLUMNS} FROM ids CROSS JOIN perdure_runs AS runs
 WHERE runs.id = replace(%(template)s, 'run_', '')::uuid
""",
    f"""
INSERT INTO perdure_history (run_id, first_sequence, commit_id, events) {IDS}
SELECT ids.id::uuid, first_sequence, commit_id,
       replace(replace(events, %(template)s, 'run_' || ids.id), '"of-the-template"',
               %(quoted_key)s)
  FROM ids CROSS JOIN perdure_history AS history
 WHERE history.run_id = replace(%(template)s, 'run_', '')::uuid
""",
)

TEMPLATE_KEY = "of-the-template"


class Copies:
    """Copies of a run that has just been created with the concurrency key `TEMPLATE_KEY`."""

    def __init__(self, url: str, template: str) -> None:
        self._url = url
        self._template = template
        self._made = 0

    def add(self, key: str, count: int) -> None:
        values = {
            "template": self._template,
            "key": key,
            "quoted_key": f'"{key}"',
            "first": self._made + 1,
            "last": self._made + count,
        }
        self._made += count
        path = self._url.removeprefix("sqlite:///")
        if path != self._url:
            with closing(sqlite3.connect(path, timeout=60)) as file:
                for statement in SQLITE:
                    file.execute(statement, values)
                file.commit()
            return
        with psycopg.connect(self._url) as server:
            for statement in POSTGRES:
                server.execute(statement.encode(), values)
