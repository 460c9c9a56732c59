"""Runs what was asked for: contenders in turns, round after round, each on a fresh store."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import growth, imports, machine, pressure, retention
from benchmarks.contenders import PERDURE_POSTGRES, PERDURE_SQLITE, PGQUEUER, Contender
from benchmarks.databases import Databases, PostgresDatabases, SqliteDatabases
from benchmarks.environments import HOME, Unavailable
from benchmarks.measures import MEASURES, Measure, Scale
from benchmarks.race import Broken, Entrant
from benchmarks.results import VALUES, Results, shown
from benchmarks.stores import OPENERS, PostgresStore, Store

GROWTH, RETENTION, PRESSURE, IMPORTS = "growth", "retention", "pressure", "imports"
NAMES = (*MEASURES, GROWTH, RETENTION, PRESSURE, IMPORTS)
OURS = (PERDURE_POSTGRES, PERDURE_SQLITE)

Say = Callable[[str], None]
TROUBLE = (Broken, AssertionError, subprocess.TimeoutExpired)


class Suite:
    """One run of the benchmarks. Use in a `with` statement: it owns the stores."""

    def __init__(
        self, scale: Scale, say: Say, only: Collection[tuple[str, str]] | None = None
    ) -> None:
        """`only`: pairs of a value and a contender; everything else is left out of the races."""
        self.results = Results()
        self._only = only
        self._scale = scale
        self._say = say
        self._data = Path()
        self._stores: dict[str, Store] = {}
        self._closing = ExitStack()

    def __enter__(self) -> Suite:
        HOME.mkdir(exist_ok=True)
        self._data = Path(tempfile.mkdtemp(prefix="data-", dir=HOME))
        self._data.chmod(0o755)  # PostgreSQL may run as somebody else
        self.results.conditions = machine.conditions(self._data)
        self._closing.callback(shutil.rmtree, self._data, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def run(self, names: Sequence[str], contenders: Iterable[Contender]) -> None:
        entrants = [entrant for one in contenders if (entrant := self._enter(one))]
        for name in names:
            if name in MEASURES:
                self._race(MEASURES[name], entrants)
        by_name = {entrant.contender.name: entrant for entrant in entrants}
        if PRESSURE in names:
            self._press([by_name[name] for name in (*OURS, PGQUEUER) if name in by_name])
        ours = [by_name[name] for name in OURS if name in by_name]
        if GROWTH in names:
            self._grow([one for one in ours if self._scale.grows(one.store.kind)])
        if RETENTION in names:
            self._forget(ours)
        if IMPORTS in names:
            self._say("imports")
            self.results.imports = imports.measure(self._scale.rounds)

    # Getting ready

    def _enter(self, contender: Contender) -> Entrant | None:
        """A contender with all it needs; None, and the reason said, if that cannot be had."""
        try:
            store = self._store(contender.store)
            command = contender.environment.command(contender.program, self._say)
        except Unavailable as reason:
            self._skip(contender, str(reason))
            return None
        self.results.contenders[contender.name] = {
            "title": contender.title,
            "version": contender.environment.version(),
            "store": contender.store,
            "keeps": contender.keeps,
            "settings": contender.says(),
        }
        return Entrant(contender, store, command, self._data)

    def _store(self, kind: str) -> Store:
        if kind not in self._stores:
            store = OPENERS[kind](self._data)
            self._closing.callback(store.close)
            self._stores[kind] = store
            self.results.conditions[kind] = store.conditions()
        return self._stores[kind]

    def _skip(self, contender: Contender, reason: str) -> None:
        self.results.skipped[contender.name] = reason
        self._say(f"left out: {contender.title} on {contender.store}: {reason}")

    # Measuring

    def _race(self, measure: Measure, entrants: Sequence[Entrant]) -> None:
        racing = [entrant for entrant in entrants if self._races(measure, entrant.contender)]
        for number in range(self._scale.rounds):
            for entrant in _rotated(racing, number):
                if entrant.contender.name not in self.results.skipped:
                    self._take(measure, entrant, number + 1)

    def _races(self, measure: Measure, contender: Contender) -> bool:
        is_asked = self._only is None or measure.is_asked(contender, self._only)
        return is_asked and measure.fits(contender)

    def _take(self, measure: Measure, entrant: Entrant, number: int) -> None:
        name = entrant.contender.name
        try:
            values, loud = machine.quietest(
                lambda: measure.take(entrant, self._scale), self._scale.tries
            )
        except TROUBLE as trouble:
            self._skip(entrant.contender, f"{measure.name}: {trouble}")
            return
        self.results.add(name, {value: round(got, 3) for value, got in values.items()})
        self.results.heard(measure.name, name, loud)
        told = ", ".join(
            f"{value} {shown(got, VALUES[value].unit)}" for value, got in values.items()
        )
        self._say(f"round {number}: {name}: {told}{_loudness(loud)}")

    def _press(self, entrants: Sequence[Entrant]) -> None:
        for entrant in entrants:
            self._say(f"pressure: {entrant.contender.name}")
            try:
                laps = pressure.measure(entrant, self._scale)
            except TROUBLE as trouble:
                self._skip(entrant.contender, f"pressure: {trouble}")
                continue
            self.results.pressure[entrant.contender.name] = laps

    def _grow(self, entrants: Sequence[Entrant]) -> None:
        for entrant in entrants:
            databases = self._databases(entrant.store)
            found = growth.measure(entrant, databases, self._scale, self._say)
            self.results.growth[entrant.store.kind] = found

    def _forget(self, entrants: Sequence[Entrant]) -> None:
        for entrant in entrants:
            databases = self._databases(entrant.store)
            found = retention.measure(entrant, databases, self._scale, self._say)
            self.results.retention[entrant.store.kind] = found

    def _databases(self, store: Store) -> Databases:
        if isinstance(store, PostgresStore):
            return PostgresDatabases(store.server)
        directory: Path = self._data / "growth"
        directory.mkdir(parents=True, exist_ok=True)
        return SqliteDatabases(directory)


def _rotated(entrants: Sequence[Entrant], number: int) -> list[Entrant]:
    start = number % max(len(entrants), 1)
    return [*entrants[start:], *entrants[:start]]


def _loudness(cores: float) -> str:
    return f"  (others used {cores:.1f} cores)" if cores > machine.TOO_LOUD else ""
