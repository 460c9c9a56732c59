"""Who is measured: ours and the peers, in one table."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.environments import ROOT, Environment, Node, Ours, Python
from benchmarks.stores import POSTGRES, REDIS, SQLITE

PERDURE_POSTGRES, PERDURE_SQLITE = "perdure_postgres", "perdure_sqlite"
PGQUEUER, PROCRASTINATE, GRAPHILE, PGBOSS = "pgqueuer", "procrastinate", "graphile", "pgboss"
DBOS_POSTGRES, DBOS_SQLITE, HUEY, CEILING = "dbos_postgres", "dbos_sqlite", "huey", "ceiling"
CELERY, DRAMATIQ, SAQ = "celery", "dramatiq", "saq"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """`question` is answered with 0 by the store when all that was begun is also recorded.
    `drain` and `single` are how many jobs make a measurement of some seconds."""

    name: str
    title: str
    store: str
    program: str
    environment: Environment
    question: str
    keeps: str
    drain: int
    single: int
    bulk: bool = True
    concurrent: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        return isinstance(self.environment, Ours) and self.name != CEILING

    def says(self) -> str:
        """The settings and why: the docstring or first comment of its file."""
        directory = ROOT / "benchmarks" / "peers"
        if isinstance(self.environment, Node):
            lines = (directory / self.program).read_text().splitlines()
            first = next(i for i, line in enumerate(lines) if not line.startswith("//"))
            return " ".join(line.removeprefix("//").strip() for line in lines[:first])
        text = (directory / f"{self.program}.py").read_text()
        return " ".join((ast.get_docstring(ast.parse(text)) or "").split())


_DBOS = Python("dbos", ("dbos==3.3.0",))


def _ours(name: str, store: str, concurrency: int) -> Contender:
    return Contender(
        name=name,
        title="Perdure",
        store=store,
        program="perdure_peer",
        environment=Ours(),
        question="SELECT count(*) FROM perdure_runs WHERE lease_token IS NOT NULL",
        keeps="the run and every event",
        drain=50_000,
        single=5_000,
        settings={"BENCH_CONCURRENCY": str(concurrency)},
    )


CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        _ours(PERDURE_POSTGRES, POSTGRES, 2000),
        Contender(
            name=PGQUEUER,
            title="PgQueuer",
            store=POSTGRES,
            program="pgqueuer_peer",
            environment=Python("pgqueuer", ("pgqueuer==1.6.0", "asyncpg", "uvloop")),
            question="SELECT count(*) FROM pgqueuer",
            keeps="three log rows",
            drain=50_000,
            single=5_000,
        ),
        Contender(
            name=PROCRASTINATE,
            title="Procrastinate",
            store=POSTGRES,
            program="procrastinate_peer",
            environment=Python("procrastinate", ("procrastinate==3.10.0", "psycopg[binary,pool]")),
            question="SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
            keeps="the job and three event rows",
            drain=4_000,
            single=3_000,
        ),
        Contender(
            name=DBOS_POSTGRES,
            title="DBOS",
            store=POSTGRES,
            program="dbos_peer",
            environment=_DBOS,
            question="SELECT count(*) FROM dbos.workflow_status"
            " WHERE status IN ('ENQUEUED', 'PENDING')",
            keeps="the workflow's inputs and output",
            drain=3_000,
            single=2_000,
        ),
        Contender(
            name=GRAPHILE,
            title="graphile-worker (Node)",
            store=POSTGRES,
            program="graphile_peer.cjs",
            environment=Node("graphile-worker", ("graphile-worker@0.18.0", "pg@8")),
            question="SELECT count(*) FROM graphile_worker._private_jobs",
            keeps="nothing",
            drain=100_000,
            single=5_000,
        ),
        Contender(
            name=PGBOSS,
            title="pg-boss (Node)",
            store=POSTGRES,
            program="pgboss_peer.mjs",
            environment=Node("pg-boss", ("pg-boss@12.35.0",)),
            question="SELECT count(*) FROM pgboss.job WHERE name = 'bench' AND state < 'completed'",
            keeps="the job",
            drain=50_000,
            single=5_000,
        ),
        _ours(PERDURE_SQLITE, SQLITE, 1000),
        Contender(
            name=HUEY,
            title="Huey",
            store=SQLITE,
            program="huey_peer",
            environment=Python("huey", ("huey==3.5.4",)),
            question="SELECT count(*) FROM task",
            keeps="nothing",
            drain=8_000,
            single=5_000,
            bulk=False,
        ),
        Contender(
            name=DBOS_SQLITE,
            title="DBOS",
            store=SQLITE,
            program="dbos_peer",
            environment=_DBOS,
            question="SELECT count(*) FROM workflow_status WHERE status IN ('ENQUEUED', 'PENDING')",
            keeps="the workflow's inputs and output",
            drain=1_000,
            single=1_000,
            bulk=False,
        ),
        Contender(
            name=CEILING,
            title="hand-written SQL",
            store=SQLITE,
            program="ceiling_peer",
            environment=Ours(),
            question="SELECT count(*) FROM jobs WHERE finished IS NULL",
            keeps="the job and five event rows",
            drain=100_000,
            single=5_000,
            concurrent=False,
        ),
        Contender(
            name=CELERY,
            title="Celery",
            store=REDIS,
            program="celery_peer",
            environment=Python("celery", ("celery[redis]==5.7.0",)),
            question="LLEN celery\nHLEN unacked",
            keeps="nothing",
            drain=3_000,
            single=3_000,
            bulk=False,
        ),
        Contender(
            name=DRAMATIQ,
            title="Dramatiq",
            store=REDIS,
            program="dramatiq_peer",
            environment=Python("dramatiq", ("dramatiq[redis]==2.2.1",)),
            question="HLEN dramatiq:default.msgs",
            keeps="nothing",
            drain=6_000,
            single=5_000,
            bulk=False,
        ),
        Contender(
            name=SAQ,
            title="SAQ",
            store=REDIS,
            program="saq_peer",
            environment=Python(
                "saq", ("saq[redis,hiredis]==0.26.4", "typing_extensions", "uvloop")
            ),
            question="LLEN saq:bench:queued\nLLEN saq:bench:active",
            keeps="one key, for ten minutes",
            drain=6_000,
            single=5_000,
            bulk=False,
        ),
    )
}
