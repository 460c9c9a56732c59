"""The ceiling on SQLite: hand-written SQL, one thread, batches of 500, WAL, `synchronous=FULL`,
and five events a job kept as rows, beside the job itself. No leases, no retries, no limits, no
wake-ups and no engine: what is left of the machine once the same facts are durable. It polls every
10 ms. Its drain only claims and finishes; a whole life is also being asked for, all by one thread:
a batch is added, claimed and finished, each in a transaction of its own, then comes the next.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
import time
from collections.abc import Sequence

from benchmarks.peers.body import PADDING, URL, calls, job, produce, report, wish

BATCH = 500
POLL = 0.01
CREATED, REQUESTED, CLAIMED, STARTED, SUCCEEDED = range(1, 6)

SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY, payload TEXT NOT NULL, due REAL, worker TEXT, finished REAL);
CREATE INDEX jobs_due ON jobs (due, id) WHERE due IS NOT NULL;
CREATE TABLE events (
    position INTEGER PRIMARY KEY, job INTEGER NOT NULL, kind INTEGER NOT NULL, at REAL NOT NULL,
    body TEXT NOT NULL);
"""
CLAIM = """
UPDATE jobs SET due = NULL, worker = 'ceiling'
 WHERE id IN (SELECT id FROM jobs WHERE due <= ? ORDER BY due, id LIMIT ?)
RETURNING id, payload
"""
ADD_JOB = "INSERT INTO jobs (payload, due) VALUES (?, ?)"
ADD_EVENT = 'INSERT INTO events (job, kind, at, body) VALUES (?, ?, ?, \'{"by":"ceiling"}\')'
FINISH = "UPDATE jobs SET finished = ? WHERE id = ?"


def connect() -> sqlite3.Connection:
    connection = sqlite3.connect(URL.removeprefix("sqlite:///"), timeout=60, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -65536")
    return connection


def note(connection: sqlite3.Connection, jobs: Sequence[int], *kinds: int) -> None:
    now = time.time()
    connection.executemany(ADD_EVENT, [(job_id, kind, now) for job_id in jobs for kind in kinds])


def add(connection: sqlite3.Connection, sent: Sequence[float]) -> None:
    now = time.time()
    connection.execute("BEGIN IMMEDIATE")
    [[last]] = connection.execute("SELECT coalesce(max(id), 0) FROM jobs")
    payloads = [json.dumps({"sent": at, "padding": PADDING}) for at in sent]
    connection.executemany(ADD_JOB, [(payload, now) for payload in payloads])
    note(connection, range(last + 1, last + 1 + len(sent)), CREATED, REQUESTED)
    connection.execute("COMMIT")


def work(connection: sqlite3.Connection) -> None:
    while True:
        if not work_once(connection):
            time.sleep(POLL)


def work_once(connection: sqlite3.Connection) -> bool:
    connection.execute("BEGIN IMMEDIATE")
    rows = connection.execute(CLAIM, (time.time(), BATCH)).fetchall()
    jobs = [job_id for job_id, _ in rows]
    note(connection, jobs, CLAIMED, STARTED)
    connection.execute("COMMIT")
    for _, payload in rows:
        job(json.loads(payload)["sent"])
    if jobs:
        now = time.time()
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(FINISH, [(now, job_id) for job_id in jobs])
        note(connection, jobs, SUCCEEDED)
        connection.execute("COMMIT")
    return bool(jobs)


def live(connection: sqlite3.Connection, count: int) -> None:
    """Whole lives, batch after batch."""
    began = time.monotonic()
    for sent in calls(count):
        add(connection, sent)
        work_once(connection)
    report(count, began)


def main() -> None:
    connection = connect()
    match wish().word:
        case "schema":
            connection.executescript(SCHEMA)
        case "worker":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            work(connection)
        case "lives":
            live(connection, wish().number)
        case _:
            produce(lambda sent: add(connection, [sent]), lambda sent: add(connection, sent))


if __name__ == "__main__":
    main()
