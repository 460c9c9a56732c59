"""Replay one seed, or run a range of them."""

from __future__ import annotations

import argparse
import sys
import time

from simulation.campaign import Campaign, command, replay, run_seeds
from simulation.scenario import make_scenario


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation")
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--seed", type=int, help="replay one seed and print its trace")
    chosen.add_argument("--seeds", type=_range, metavar="A..B", help="run A to B, both included")
    parser.add_argument("--digests", action="store_true", help="print only the traces' hashes")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _show(options.seed)
    return _hash(options.seeds) if options.digests else _run(options.seeds)


def _range(text: str) -> range:
    first, _, last = text.partition("..")
    return range(int(first), int(last) + 1)


def _show(seed: int) -> int:
    _say(str(make_scenario(seed)))
    notes = replay(seed)
    for line in notes.lines:
        _say(line)
    _say(f"trace {notes.digest()}; seen: {', '.join(sorted(notes.seen)) or 'nothing rare'}")
    _say(f"PROBLEM: {notes.problem}" if notes.problem else "No problem.")
    return 1 if notes.problem else 0


def _hash(seeds: range) -> int:
    for seed, notes in run_seeds(seeds):
        _say(f"{seed} {notes.digest()}")
    return 0


def _run(seeds: range) -> int:
    campaign = Campaign()
    began = time.perf_counter()
    for seed, notes in run_seeds(seeds):
        campaign.add(seed, notes)
        if notes.problem is not None:
            _say(f"seed {seed}: {notes.problem}\n    {command(seed)}")
    took = time.perf_counter() - began
    _say(f"{campaign.seeds} scenarios in {took:.1f} s ({campaign.seeds / took:.1f} a second)")
    for name, times in sorted(campaign.seen.items()):
        _say(f"{times:8} {name}")
    for name in campaign.missed:
        _say(f"   never {name}")
    return 1 if campaign.problems else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
