"""Measure Perdure beside its peers, on this machine, and say what came out.

    python -m benchmarks                     everything, five rounds (some hours)
    python -m benchmarks --targets           only what is promised, five rounds (half an hour)
    python -m benchmarks --quick             that it works (a minute or two); proves nothing
    python -m benchmarks --only drain,latency --peers pgqueuer --adapter postgres

Peers are installed from the ordinary registries into `.bench/` when first needed. A peer that
cannot be had is left out, and the reason is printed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.contenders import CEILING, CONTENDERS, Contender
from benchmarks.environments import HOME
from benchmarks.measures import FULL, MEASURES, QUICK, Scale
from benchmarks.results import VALUES, Results, shown
from benchmarks.suite import GROWTH, IMPORTS, NAMES, OURS, Suite
from benchmarks.targets import GROWN, Judged, asked, judged

ALL, NONE = "all", "none"
PEERS = [name for name in CONTENDERS if name not in OURS]
PROMISED = (*MEASURES, IMPORTS, GROWTH)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    scale = scale_of(chosen)
    pairs = asked() if chosen.targets else None
    with Suite(scale, Progress(), pairs) as suite:
        suite.results.conditions["quick"] = chosen.quick
        suite.results.conditions["rounds"] = scale.rounds
        suite.results.conditions["when"] = datetime.now(UTC).isoformat(timespec="minutes")
        suite.run(chosen.only or (PROMISED if chosen.targets else NAMES), contenders(chosen))
    print(*summary(suite.results), sep="\n")
    path: Path = chosen.json
    path.parent.mkdir(parents=True, exist_ok=True)
    suite.results.write(path)
    print(f"\nAll samples: {path}. A page of them: python -m benchmarks.page {path}")
    return 0


def scale_of(chosen: argparse.Namespace) -> Scale:
    scale = QUICK if chosen.quick else FULL
    if chosen.targets:
        scale = replace(scale, places=GROWN)
    return replace(scale, rounds=chosen.rounds or scale.rounds)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--quick", action="store_true", help="small numbers, one round, no peers")
    made.add_argument("--targets", action="store_true", help="only what a promise speaks of")
    made.add_argument("--only", type=_names(NAMES), metavar="NAME,…")
    made.add_argument("--peers", type=_names([ALL, NONE, *PEERS]), metavar="NAME,…")
    made.add_argument("--adapter", choices=["postgres", "sqlite", "both"], default="both")
    made.add_argument("--rounds", type=int, metavar="N", help="instead of five, or of one if quick")
    made.add_argument("--json", type=Path, metavar="FILE", default=HOME / "results.json")
    made.epilog = f"measurements: {', '.join(NAMES)}\npeers: {', '.join(PEERS)}, all, none"
    return made


def _names(known: Sequence[str]) -> type[list[str]]:
    class Names(list[str]):
        def __init__(self, text: str) -> None:
            super().__init__(text.split(","))
            for name in self:
                if name not in known:
                    raise argparse.ArgumentTypeError(
                        f"{name!r} is none of {', '.join(known)}; name some of these"
                    )

    return Names


def contenders(chosen: argparse.Namespace) -> list[Contender]:
    """Ours always; of the peers those that were named: by default all, or in a quick run only the
    ceiling, which needs no installation. Redis's count as peers of both adapters."""
    peers = chosen.peers or ([CEILING] if chosen.quick else [ALL])
    wanted = {*OURS, *(PEERS if ALL in peers else peers)}
    if chosen.targets:
        wanted &= {contender for _, contender in asked()}
    other = {"postgres": "sqlite", "sqlite": "postgres"}.get(chosen.adapter)
    return [one for one in CONTENDERS.values() if one.name in wanted and one.store != other]


class Progress:
    """Says what is going on, and since when."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        seconds = int(time.monotonic() - self._began)
        print(f"{seconds // 60:4}:{seconds % 60:02}  {text}", file=sys.stderr, flush=True)


def summary(results: Results) -> list[str]:
    """Medians, then the ratios that are promised."""
    lines = []
    for name, value in VALUES.items():
        medians = {one: results.median(name, one) for one in results.samples.get(name, {})}
        if medians:
            lines += ["", value.title]
            lines += [
                f"  {one:<20} {shown(got or 0, value.unit):>16}" for one, got in medians.items()
            ]
    told = list(judged(results))
    if not told:
        return lines
    if results.conditions["quick"]:
        return [*lines, "", "Ratios of a quick run prove nothing; none is judged"]
    return [*lines, "", "Promised", *map(_verdict, told)]


def _verdict(one: Judged) -> str:
    missed = "" if one.is_met else "MISSED"
    line = f"  {one.target.says:<50} {one.value:8.2f} {one.target.asks():>14}  {missed}"
    return line.rstrip()


if __name__ == "__main__":
    sys.exit(main())
