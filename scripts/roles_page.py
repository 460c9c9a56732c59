"""The page about PostgreSQL roles: the SQL that the package ships, and how to use it."""

from __future__ import annotations

from importlib.resources import files

INTRODUCTION = """\
# PostgreSQL roles

Made by `make docs` from `src/perdure/storage/postgres/roles.sql`; do not edit it here.

A server, a worker and a person who reads need different rights in the database. The SQL below
creates a role for each, without a login and with no more rights than it needs:

| | `perdure_server` | `perdure_worker` | `perdure_reader` |
|---|---|---|---|
| is for | `perdure server` | `perdure worker --no-maintenance` | `perdure runs list` |
| runs, logs, schedules, limits | reads and writes | reads and writes | reads |
| delete runs and histories | yes: maintenance | no | no |
| close a dead letter | yes | no | no |
| webhooks and their deliveries | reads and writes | no | no |
| API keys (their hashes) | reads and writes | no | no |
| audit log | reads and adds | no | no |
| change or delete audit entries | no | no | no |
| create, alter, drop or truncate tables | no | no | no |

Migrations need the owner of the tables, which is none of these roles:

```console
$ perdure migrate --url postgresql://owner@db/perdure
$ perdure migrate --roles | psql -v ON_ERROR_STOP=1 postgresql://owner@db/perdure
```

Run both again after each upgrade: a new table has no rights until then. Then give the roles to the
logins that the processes use:

```text
CREATE ROLE perdure_api LOGIN PASSWORD '…' IN ROLE perdure_server;
CREATE ROLE perdure_work LOGIN PASSWORD '…' IN ROLE perdure_worker;
CREATE ROLE ada LOGIN PASSWORD '…' IN ROLE perdure_reader;
```

What this does not do:

- It does not separate environments. A worker's login reads and writes the runs of all of them; to
  separate them, give each a database, or let workers [connect to a
  server](../remote-workers.md) instead.
- A worker writes runs and histories directly, so a malicious one can damage them. It cannot delete
  them, and `perdure audit` names what does not fit together.
- `ctx.transaction()` uses the worker's login for your own tables: grant those rights to it as well.
- A reader sees payloads, results and lease tokens as they are stored. It cannot use a token, since
  it cannot write.
- Before PostgreSQL 15 everybody may create tables in the schema `public`. Take that away with
  `REVOKE CREATE ON SCHEMA public FROM PUBLIC`.

`tests/storage/test_postgres_roles.py` executes exactly this SQL, lets a server and a worker live
with these roles, and attempts what they must not do.

"""


def roles() -> str:
    sql = files("perdure.storage").joinpath("postgres/roles.sql").read_text(encoding="utf-8")
    return f"{INTRODUCTION}```sql\n{sql}```\n"
