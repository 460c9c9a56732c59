"""The transitions the seed systems published, typed in by hand from their pages, and where a
Perdure run, told in their words, takes another way. Read by the conformance test, which walks
real histories, and by `scripts/generate_docs.py`, which prints the lists."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.core.seed_terms import Seed

NEW = "(new)"
"""Where every history starts, before its first commit."""

Pair = tuple[str, str]


@dataclass(frozen=True)
class SeedTable:
    """One system's published transitions, our declared differences, and what we never do."""

    source: str
    published: frozenset[Pair]
    differences: dict[Pair, str]
    unreachable: dict[Pair, str]


def _pairs(table: dict[str, str]) -> frozenset[Pair]:
    return frozenset((old, new) for old, news in table.items() for new in news.split())


def _because(reasons: dict[str, dict[str, str]]) -> dict[Pair, str]:
    return {
        (old, new): reason
        for reason, table in reasons.items()
        for old, news in table.items()
        for new in news.split()
    }


_ONE_COMMIT = "a worker with a free slot claims and starts in one commit"
_LATER = "it has no word for a run that is due later: what happens from there seems to come early"

WAKEPLANE = SeedTable(
    source="Run States: transition rules and diagram",
    published=_pairs(
        {
            NEW: "pending skipped",
            "pending": "claimed",
            "claimed": "running pending",
            "running": "succeeded failed cancelled",
            "failed": "retry_scheduled dead_lettered",
            "retry_scheduled": "claimed pending",
        }
    ),
    differences=_because(
        {
            "one run is retried, instead of one row per attempt": {"running": "retry_scheduled"},
            "a run ends once: the last failure and its dead letter are one commit": {
                "running": "dead_lettered"
            },
            "a crashed attempt is redelivered, or a released run is woken or rescheduled": {
                "running": "pending"
            },
            "a released or waiting run is due again and is claimed (no word in between)": {
                "running": "claimed"
            },
            "an operator may cancel a run at any stage, not only while it runs": {
                "pending": "cancelled",
                "retry_scheduled": "cancelled",
            },
            "a returned claim waits for a later time, without a word there, and is cancelled": {
                "claimed": "cancelled"
            },
            "a claim that cannot become an attempt ends: refused, returned or lost too often": {
                "claimed": "failed dead_lettered"
            },
            "`queue_latest` and `replace` supersede an occurrence that has not begun": {
                "pending": "skipped",
                "claimed": "skipped",
            },
            _ONE_COMMIT: {"pending": "running", "retry_scheduled": "running"},
            _LATER: {NEW: "claimed running cancelled"},
        }
    ),
    unreachable=_because(
        {
            "`failed` is terminal: a retry keeps the run and goes from `running` directly": {
                "failed": "retry_scheduled"
            },
            "`failed` is terminal: the dead letter is part of the commit that ends the run": {
                "failed": "dead_lettered"
            },
        }
    ),
)

STRAIT = SeedTable(
    source="Runs: valid transitions",
    published=_pairs(
        {
            NEW: "delayed queued",
            "delayed": "queued canceled expired",
            "queued": "dequeued canceled expired",
            "dequeued": "executing queued canceled system_failed",
            "executing": "completed failed timed_out crashed canceled waiting queued"
            " system_failed dead_letter",
            "waiting": "executing completed failed canceled timed_out",
            "dead_letter": "queued",
        }
    ),
    differences=_because(
        {
            "due runs are claimed without a stop in the queue": {"delayed": "dequeued"},
            _ONE_COMMIT: {"queued": "executing", "delayed": "executing"},
            "an operator reschedules a queued run": {"queued": "delayed"},
            "a worker that cannot run it now returns the claim with a later time (snooze)": {
                "dequeued": "delayed"
            },
            "waits end through the queue: a signal queues the run, a deadline makes it claimable": {
                "waiting": "queued dequeued"
            },
            "a payload or policy refused before the attempt is a failure of kind `rejected`": {
                "dequeued": "failed"
            },
            "a claim that kills every worker is poison and needs an operator": {
                "dequeued": "dead_letter"
            },
        }
    ),
    unreachable=_because(
        {
            "the owner of a claim is asked first: `cancellation_requested`, there `executing`": {
                "dequeued": "canceled"
            },
            "a run does not end while it waits; it is claimed, and its attempt says how it ended": {
                "waiting": "completed failed timed_out"
            },
            "terminal is terminal: a replay makes a new run, linked by its source": {
                "dead_letter": "queued"
            },
        }
    ),
)

ATTUNE = SeedTable(
    # The page does not name `canceling`; its pair comes from Attune's cancel API.
    source="Execution state ownership: who updates the database",
    published=_pairs(
        {
            NEW: "requested",
            "requested": "scheduling cancelled failed",
            "scheduling": "scheduled cancelled failed",
            "scheduled": "running cancelled failed",
            "running": "completed failed cancelled timeout abandoned canceling",
            "canceling": "cancelled",
        }
    ),
    differences=_because(
        {
            "the claim is the handoff, one commit: no `scheduling` between": {
                "requested": "scheduled"
            },
            _ONE_COMMIT: {"requested": "running"},
            "recovery: an expired or returned claim goes back to the queue": {
                "scheduled": "requested"
            },
            "a failed or abandoned attempt is retried, a wait ends through the queue": {
                "running": "requested"
            },
            "a wait whose deadline passed, or a released run, is claimed again": {
                "running": "scheduled"
            },
            "the owner of a claim is asked to stop, like that of an attempt": {
                "scheduled": "canceling"
            },
            "success stands, also when a cancellation was asked for meanwhile": {
                "canceling": "completed"
            },
            "a failure while cancelling is final, of whatever kind": {
                "canceling": "failed timeout abandoned"
            },
            _LATER: {NEW: "scheduled running cancelled"},
        }
    ),
    unreachable=_because(
        {
            "there is no `scheduling`: whoever commits the claim is the one who runs it": {
                "requested": "scheduling",
                "scheduling": "scheduled cancelled failed",
            },
            "nothing fails before it is claimed: it expires, is skipped or is cancelled": {
                "requested": "failed"
            },
        }
    ),
)

RUNLANE = SeedTable(
    source="Core Reducer: lifecycle rules",
    published=_pairs(
        {
            NEW: "queued",
            "queued": "scheduled running cancelled",
            "scheduled": "queued running cancelled",
            "retrying": "queued scheduled running cancelled",
            "released": "queued scheduled running cancelled",
            "running": "queued scheduled succeeded failed retrying released cancellation_requested",
            "cancellation_requested": "succeeded failed retrying released cancelled",
        }
    ),
    differences=_because(
        {
            "the creation and the first delivery, for a later time, are one commit": {
                NEW: "scheduled"
            },
        }
    ),
    unreachable=_because(
        {
            "a failure while cancelling is final; the reducer accepts it, no decision makes it": {
                "cancellation_requested": "retrying"
            },
            "a release while cancelling becomes `cancelled`; the reducer accepts it, no decision"
            " makes it": {"cancellation_requested": "released"},
        }
    ),
)

SEEDS: dict[Seed, SeedTable] = {
    Seed.WAKEPLANE: WAKEPLANE,
    Seed.STRAIT: STRAIT,
    Seed.ATTUNE: ATTUNE,
    Seed.RUNLANE: RUNLANE,
}
