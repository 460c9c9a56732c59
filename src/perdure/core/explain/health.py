"""What is wrong with a database, judged from what was seen there. Each finding says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from perdure.core.webhook import WebhookState
from perdure.errors import PerdureError, SchemaMismatch

LONG_TRANSACTION = timedelta(minutes=5)
LONG_IDLE = timedelta(minutes=1)
"""For a session that does nothing while its transaction is open."""
MAINTENANCE_LATE = timedelta(minutes=1)
WEBHOOK_LATE = timedelta(minutes=5)
CLOCK_OFFSET = timedelta(seconds=5)
PRUNING_LATE = timedelta(days=1)
MANY_DEAD = 50_000
"""Dead rows, where there are more than live ones. Between two passes of autovacuum, a minute apart,
a busy queue leaves more: only what remains after them is a problem."""
FAR_TOO_MANY = 20
"""Times `MANY_DEAD`, or the live rows: a problem in any case."""
VACUUM_LATE = timedelta(minutes=10)
MANY_CHECKPOINTS = 10
"""Fewer forced ones say nothing: a large import or a restore does that."""
LONG_LOG = 128 * 2**20
LITTLE_SPACE = 2**30
MOST_NAMED = 5
CLOCK_WAS_WRONG = " If it is right now, do nothing: a SQLite database waits until it has caught up."


class Code(StrEnum):
    """What was found."""

    UNREACHABLE = "unreachable"
    SCHEMA = "schema"
    WAL_RESET_FAULT = "wal_reset_fault"
    LONG_LOG = "long_log"
    READABLE_BY_OTHERS = "readable_by_others"
    LITTLE_SPACE = "little_space"
    AUTOVACUUM_OFF = "autovacuum_off"
    DEAD_ROWS = "dead_rows"
    BROKEN_INDEXES = "broken_indexes"
    NOT_DURABLE = "not_durable"
    FORCED_CHECKPOINTS = "forced_checkpoints"
    LONG_TRANSACTION = "long_transaction"
    IDLE_TRANSACTION = "idle_transaction"
    CLOCK_OFFSET = "clock_offset"
    UNREADABLE_RUNS = "unreadable_runs"
    MAINTENANCE_LATE = "maintenance_late"
    PRUNING_LATE = "pruning_late"
    STUCK_GATES = "stuck_gates"
    SILENT_WORKERS = "silent_workers"
    UNSERVED_QUEUES = "unserved_queues"
    UNSERVED_TASKS = "unserved_tasks"
    NOT_IMPORTABLE = "not_importable"
    BLOCKED_LOOPS = "blocked_loops"
    WAIT_CYCLES = "wait_cycles"
    WEBHOOKS_DISABLED = "webhooks_disabled"
    WEBHOOKS_FAILING = "webhooks_failing"
    WEBHOOKS_BEHIND = "webhooks_behind"
    WEBHOOKS_MISSED = "webhooks_missed"
    WEBHOOKS_QUARANTINED = "webhooks_quarantined"


class Finding(msgspec.Struct, frozen=True):
    """`is_problem`: something must be done; else it is good to know."""

    code: Code
    is_problem: bool
    sentence: str
    advice: str


class Table(msgspec.Struct, frozen=True):
    """Rows as the server estimates them, whether it cleans up after them by itself, and how long
    ago it last did; none: not yet."""

    name: str
    live: int
    dead: int
    is_vacuumed: bool = True
    vacuumed_ago: timedelta | None = None


class Session(msgspec.Struct, frozen=True):
    """An open transaction. `keeps_rows`: vacuum cannot remove rows that died since it began."""

    who: str
    age: timedelta
    is_idle: bool = False
    is_writing: bool = False
    keeps_rows: bool = False


class Vitals(msgspec.Struct, frozen=True, kw_only=True):
    """What a database says of itself; none: that one does not say."""

    database: str
    bytes: int
    has_wal_reset_fault: bool = False
    log_bytes: int | None = None
    log_held_bytes: int = 0
    """Bytes of the log that a reader keeps from being moved into the file."""
    is_readable_by_others: bool = False
    free_bytes: int | None = None
    is_vacuumed: bool = True
    is_durable: bool = True
    checkpoints: tuple[int, int] | None = None
    """When it was time, and because the log was full."""
    broken_indexes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    sessions: tuple[Session, ...] = ()


class Neglect(msgspec.Struct, frozen=True):
    """Runs put aside because this code cannot read them, counted only so far; since when
    maintenance should have looked at some run; and when the oldest run that succeeded did."""

    unreadable: int = 0
    attention_at: datetime | None = None
    oldest_success_at: datetime | None = None


class WebhookFact(msgspec.Struct, frozen=True, kw_only=True):
    """How a webhook is. `behind`: since when something waits that no sender has looked at; `gap`:
    changes were pruned before it was told of them."""

    name: str
    state: WebhookState
    why: str = ""
    behind: timedelta = timedelta(0)
    gap: bool = False


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was seen. `stuck`: gates with room that others wait behind all the same."""

    now: datetime
    vitals: Vitals
    retention: timedelta = timedelta.max
    clock_ahead: timedelta = timedelta(0)
    neglect: Neglect = Neglect()
    stuck: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    unserved: tuple[str, ...] = ()
    unserved_tasks: tuple[str, ...] = ()
    not_importable: tuple[str, ...] = ()
    blocked_loops: tuple[str, ...] = ()
    cycles: tuple[str, ...] = ()
    webhooks: tuple[WebhookFact, ...] = ()


Findings = Iterator[Finding]


def examine(facts: Facts) -> list[Finding]:
    """All that is worth knowing; what must be mended first."""
    found = [finding for look in _LOOKS for finding in look(facts)]
    return sorted(found, key=lambda finding: not finding.is_problem)


def unusable(error: PerdureError, code: Code) -> Finding:
    """Where nothing else could be looked at."""
    advice = "See that the database is up and that its URL is right."
    if code is Code.SCHEMA:
        is_newer = isinstance(error, SchemaMismatch) and error.found > error.wanted
        advice = "Upgrade Perdure on this machine." if is_newer else "Run `perdure migrate`."
    return Finding(code, True, f"{error}.", advice)


def _log(facts: Facts) -> Findings:
    vitals = facts.vitals
    if vitals.has_wal_reset_fault:
        words = f"{vitals.database} can damage its file when a checkpoint meets a commit."
        advice = (
            "Perdure checkpoints in a way that avoids it; so must every other program that opens "
            "the file. Better use a Python with SQLite 3.51.3 or newer."
        )
        yield Finding(Code.WAL_RESET_FAULT, False, words, advice)
    if vitals.log_bytes is not None and vitals.log_bytes > LONG_LOG and vitals.log_held_bytes:
        held = _size(vitals.log_held_bytes)
        words = f"The write-ahead log has {_size(vitals.log_bytes)}; a reader holds {held} of it."
        advice = "Look for a process that keeps a read transaction open, and end it."
        yield Finding(Code.LONG_LOG, True, words, advice)


def _access(facts: Facts) -> Findings:
    if facts.vitals.is_readable_by_others:
        words = "Other users of this machine may read the database: payloads, results and logs."
        advice = "Unless they should, take that away: chmod 600 for the file and those beside it."
        yield Finding(Code.READABLE_BY_OTHERS, False, words, advice)


def _space(facts: Facts) -> Findings:
    free = facts.vitals.free_bytes
    if free is not None and free < max(LITTLE_SPACE, facts.vitals.bytes // 10):
        words = f"Only {_size(free)} are free where the database is."
        advice = "Make room, or shorten `retention`: a full disk refuses every write."
        yield Finding(Code.LITTLE_SPACE, True, words, advice)


def _vacuum(facts: Facts) -> Findings:
    vitals = facts.vitals
    off = [it.name for it in vitals.tables if not it.is_vacuumed]
    if not vitals.is_vacuumed or off:
        where = "on this server" if not vitals.is_vacuumed else f"for {_some(off)}"
        advice = "Switch it on: without it tables grow and every claim gets slower."
        yield Finding(Code.AUTOVACUUM_OFF, True, f"Autovacuum is off {where}.", advice)


def _dead_rows(facts: Facts) -> Findings:
    """Tables where vacuum does not keep up: a transaction prevents it, or it does not come."""
    sessions = facts.vitals.sessions
    keeper = next((it for it in sessions if it.keeps_rows and it.age > LONG_IDLE), None)
    for it in facts.vitals.tables:
        usual = max(MANY_DEAD, it.live)
        is_late = it.vacuumed_ago is not None and it.vacuumed_ago > VACUUM_LATE
        is_behind = keeper is not None or is_late or it.dead > FAR_TOO_MANY * usual
        if it.dead > usual and is_behind:
            words = f"{it.name} has {it.dead} dead rows beside {it.live} live ones."
            yield Finding(Code.DEAD_ROWS, True, words, _vacuum_advice(it, keeper))


def _vacuum_advice(dead: Table, keeper: Session | None) -> str:
    if keeper is not None:
        return (
            f"Vacuum cannot remove them while a transaction of {keeper.who} is open: end it. It "
            f"began {keeper.age} ago."
        )
    last = f"{dead.vacuumed_ago} ago" if dead.vacuumed_ago is not None else "never"
    return (
        f"No transaction prevents it, but vacuum does not keep up (it last ended {last}). Run "
        f"VACUUM {dead.name}, and give autovacuum more workers or a higher cost limit."
    )


def _server(facts: Facts) -> Findings:
    vitals = facts.vitals
    if not vitals.is_durable:
        words = "The server confirms what is not yet on disk: synchronous_commit is off."
        advice = "A crash can take back runs that were confirmed. Switch it on for this database."
        yield Finding(Code.NOT_DURABLE, True, words, advice)
    if vitals.broken_indexes:
        words = f"Indexes are not valid and not used: {_some(vitals.broken_indexes)}."
        advice = "Run REINDEX INDEX for each: without them every look reads a whole table."
        yield Finding(Code.BROKEN_INDEXES, True, words, advice)
    timed, forced = vitals.checkpoints or (0, 0)
    if forced > max(MANY_CHECKPOINTS, timed):
        words = f"{forced} checkpoints were made because the log was full, {timed} by time."
        advice = "Raise max_wal_size: each checkpoint makes writes larger for some time."
        yield Finding(Code.FORCED_CHECKPOINTS, False, words, advice)


def _transactions(facts: Facts) -> Findings:
    for session in facts.vitals.sessions[:MOST_NAMED]:
        kind = "An idle transaction" if session.is_idle else "A transaction"
        words = f"{kind} of {session.who} has been open for {session.age}."
        effect = "The change feed waits for it, and" if session.is_writing else "Meanwhile"
        advice = f"{effect} dead rows cannot be removed. End it, and find out why it stays open."
        if session.is_idle and session.age > LONG_IDLE:
            yield Finding(Code.IDLE_TRANSACTION, True, words, advice)
        elif session.age > LONG_TRANSACTION:
            yield Finding(Code.LONG_TRANSACTION, True, words, advice)


def _clock(facts: Facts) -> Findings:
    return find_clock_offset(facts.clock_ahead)


def find_clock_offset(clock_ahead: timedelta) -> Findings:
    """Whether this machine's clock and the database's differ too much."""
    if abs(clock_ahead) > CLOCK_OFFSET:
        side = "ahead of" if clock_ahead > timedelta(0) else "behind"
        words = f"This machine's clock is {abs(clock_ahead)} {side} the database's."
        advice = "Log lines, `run_at` and, on SQLite, schedules depend on it: synchronise it."
        if clock_ahead < timedelta(0):
            advice += CLOCK_WAS_WRONG
        yield Finding(Code.CLOCK_OFFSET, True, words, advice)


def _maintenance(facts: Facts) -> Findings:
    neglect = facts.neglect
    if neglect.attention_at is not None and facts.now - neglect.attention_at > MAINTENANCE_LATE:
        words = f"Maintenance should have looked at a run {facts.now - neglect.attention_at} ago."
        advice = (
            "Start it: `app.run_all()`, `async with app.maintenance()`, or `perdure tick` by cron. "
            "Without it leases of dead workers are never taken back."
        )
        yield Finding(Code.MAINTENANCE_LATE, True, words, advice)
    oldest = neglect.oldest_success_at
    if oldest is not None and facts.now - oldest - PRUNING_LATE > facts.retention:
        words = f"A run that ended at {oldest:%Y-%m-%d %H:%M} UTC is kept longer than `retention`."
        advice = "Maintenance forgets such runs: see that it runs, or run `perdure prune`."
        yield Finding(Code.PRUNING_LATE, True, words, advice)
    if facts.stuck:
        words = f"Runs wait behind limits that have room: {_some(facts.stuck)}."
        advice = "Maintenance opens them: see that it runs, and what its log says."
        yield Finding(Code.STUCK_GATES, True, words, advice)
    if neglect.unreadable:
        words = f"{neglect.unreadable} runs were put aside, since this code cannot read them."
        advice = "Upgrade Perdure, then run `perdure migrate`; `perdure audit` names them."
        yield Finding(Code.UNREADABLE_RUNS, True, words, advice)


def _workers(facts: Facts) -> Findings:
    if facts.silent:
        words = f"Workers have not been heard of for a lease's length: {_some(facts.silent)}."
        advice = "If they are dead, their runs are recovered, and after an hour they are forgotten."
        yield Finding(Code.SILENT_WORKERS, False, words, advice)
    if facts.unserved:
        words = f"Runs are due in queues that no live worker serves: {_some(facts.unserved)}."
        advice = "Start a worker for them: `perdure worker APP --queues …`."
        yield Finding(Code.UNSERVED_QUEUES, True, words, advice)
    if facts.unserved_tasks:
        words = f"Runs are due that no live worker can execute: {_some(facts.unserved_tasks)}."
        advice = "Start workers with this code, or cancel the runs; `perdure why RUN` says more."
        yield Finding(Code.UNSERVED_TASKS, True, words, advice)
    if facts.not_importable:
        words = f"Live workers cannot import handlers: {_some(facts.not_importable)}."
        advice = "Deploy the missing modules there. Until then the runs wait for other workers."
        yield Finding(Code.NOT_IMPORTABLE, True, words, advice)
    if facts.blocked_loops:
        words = f"Async handlers block the loop of their worker: {_some(facts.blocked_loops)}."
        advice = "Make each a `def` handler, or let it await: others on its loop wait meanwhile."
        yield Finding(Code.BLOCKED_LOOPS, True, words, advice)


def _cycles(facts: Facts) -> Findings:
    for cycle in facts.cycles[:MOST_NAMED]:
        words = f"Runs wait for each other: {cycle}."
        advice = (
            "Start one more worker, raise the limit, or cancel one of them. Give the awaited task "
            "workers or limits of its own, or let its handler trigger what comes after it."
        )
        yield Finding(Code.WAIT_CYCLES, True, words, advice)


def _webhooks(facts: Facts) -> Findings:
    for hook in facts.webhooks:
        if hook.state is WebhookState.DISABLED:
            words = f"Webhook {hook.name} is disabled: {hook.why}."
            advice = (
                f"Mend its endpoint, then `perdure webhooks resume {hook.name}`: it goes on where "
                "it stopped, as far as runs are still kept."
            )
            yield Finding(Code.WEBHOOKS_DISABLED, True, words, advice)
        elif hook.state is WebhookState.FAILING:
            words = f"Webhook {hook.name} is failing: {hook.why}."
            advice = f"It is tried again by itself; `perdure webhooks show {hook.name}` tells when."
            yield Finding(Code.WEBHOOKS_FAILING, False, words, advice)
        elif hook.state is WebhookState.QUARANTINED:
            words = f"Webhook {hook.name} cannot be read and is skipped: {hook.why}."
            advice = (
                f"`perdure webhooks delete {hook.name}`, then create it again; if newer code wrote "
                "it, update this code instead."
            )
            yield Finding(Code.WEBHOOKS_QUARANTINED, True, words, advice)
    behind = [f"{it.name} ({it.behind})" for it in facts.webhooks if it.behind > WEBHOOK_LATE]
    if behind:
        words = f"Nobody has told webhooks what waits for them: {_some(behind)}."
        advice = "Start a sender: `perdure server`, `app.run_all()` or `app.webhook_sender()`."
        yield Finding(Code.WEBHOOKS_BEHIND, True, words, advice)
    missed = [it.name for it in facts.webhooks if it.gap]
    if missed:
        words = f"Changes were pruned before webhooks were told of them: {_some(missed)}."
        advice = "Let receivers read what they need anew, then `perdure webhooks resume NAME`."
        yield Finding(Code.WEBHOOKS_MISSED, True, words, advice)


_LOOKS: tuple[Callable[[Facts], Findings], ...] = (
    *(
        _space,
        _access,
        _log,
        _vacuum,
        _dead_rows,
        _server,
        _transactions,
        _clock,
        _maintenance,
        _workers,
        _cycles,
        _webhooks,
    ),
)


def _some(names: tuple[str, ...] | list[str]) -> str:
    rest = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + rest


def _size(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"
