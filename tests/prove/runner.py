"""Runs campaigns slice by slice, with a checkpoint after each."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from prove.campaign import Campaign, CampaignFailed, Outcome, Slice
from prove.checkpoint import Checkpoint
from prove.databases import MakeDatabase, databases
from prove.record import append_result, format_counts

MAX_SEED = 1_000_000_000
SLICE_SEED_STEP = 1_000_003
"""The difference between the seeds of two slices: more than the seeds that one slice uses."""
MAX_RESULT_CHARACTERS = 300


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to prove, and where to keep the state and the results."""

    campaign: Campaign
    database: str | None
    commit: str
    seed: int | None = None
    size: int | None = None
    is_fresh: bool = False
    """Whether to forget an interrupted campaign and begin again."""
    checkpoints: Path = Path(".prove")
    proof: Path = Path("docs/proof.md")


def prove(requests: Sequence[Request]) -> bool:
    """Run a campaign on each database and record the results. Return whether all passed.

    If it was interrupted, or failed, only what is left of it is run.
    """
    runs = [_Run(request) for request in requests]
    unfinished = [run for run in runs if run.is_resumed] or runs
    for run in unfinished:
        run.state.save(run.path)
    results = [run.execute() for run in unfinished]
    return all(results)


class _Run:
    """One campaign on one database, from its checkpoint to its end."""

    def __init__(self, request: Request) -> None:
        self._campaign = request.campaign
        self._database = request.database
        self._proof = request.proof
        self.path = (
            request.checkpoints / f"{request.campaign.name}-{request.database or 'all'}.json"
        )
        size = request.campaign.size if request.size is None else request.size
        stored = None if request.is_fresh else Checkpoint.load(self.path)
        if stored is not None and not stored.fits(request.commit, request.seed, size):
            stored = None
        self.is_resumed = stored is not None
        self.state = stored or Checkpoint(commit=request.commit, seed=_seed(request), size=size)
        self._sizes = request.campaign.slices(self.state.size)

    def execute(self) -> bool:
        """Run the slices that are left and record the result. Return whether it passed."""
        self._announce()
        problem = self._execute_slices()
        result = "passed" if problem is None else f"FAILED: {problem}"[:MAX_RESULT_CHARACTERS]
        append_result(self._proof, self._campaign, self._database, self.state, result)
        counts = format_counts(self.state.outcome.counts)
        print(f"{result}: {counts} ({self.state.seconds:.0f} s)", flush=True)
        if problem is None:
            self.path.unlink(missing_ok=True)
        return problem is None

    def _announce(self) -> None:
        name = (
            f"{self._campaign.name} on {self._database}" if self._database else self._campaign.name
        )
        state = self.state
        print(
            f"{name}: seed {state.seed}, {state.size} {self._campaign.unit}, {state.commit}",
            flush=True,
        )
        if state.slices:
            print(f"continues after slice {state.slices} of {len(self._sizes)}")

    def _execute_slices(self) -> str | None:
        """Return the problem that ended the campaign, if any."""
        try:
            with databases(self._database) as make_database:
                for number in range(self.state.slices, len(self._sizes)):
                    self._execute_slice(number, make_database)
            if self._campaign.verify is not None:
                self._campaign.verify(self.state.outcome)
        except CampaignFailed as failure:
            return str(failure)
        return None

    def _execute_slice(self, number: int, make_database: MakeDatabase) -> None:
        directory = Path(tempfile.mkdtemp(prefix=f"perdure-{self._campaign.name}-"))
        part = Slice(
            number=number,
            seed=self.state.seed + number * SLICE_SEED_STEP,
            size=self._sizes[number],
            database=self._database,
            url=make_database(directory, number),
            directory=directory,
            report=_progress(number, len(self._sizes), self._sizes[number], self._campaign.unit),
        )
        began = time.monotonic()
        outcome = self._outcome_of(part)
        self.state.add(outcome, time.monotonic() - began)
        self.state.save(self.path)
        shutil.rmtree(directory)
        done = f"slice {number + 1} of {len(self._sizes)}"
        print(f"{done}: {format_counts(outcome.counts)}", flush=True)

    def _outcome_of(self, part: Slice) -> Outcome:
        """Run a slice. Raise CampaignFailed with its seed, whatever went wrong."""
        began = time.monotonic()
        try:
            return self._campaign.run(part)
        except Exception as error:
            self.state.seconds += time.monotonic() - began
            if not isinstance(error, CampaignFailed):
                traceback.print_exc()
            where = f"slice {part.number + 1} with seed {part.seed}"
            print(f"{where} failed; its files: {part.directory}", file=sys.stderr)
            raise CampaignFailed(f"{where}: {str(error) or type(error).__name__}") from error


def _seed(request: Request) -> int:
    return 1 + secrets.randbelow(MAX_SEED) if request.seed is None else request.seed


def _progress(number: int, slices: int, size: int, unit: str) -> Callable[[int], None]:
    """Return a function that overwrites one line of a terminal; without one it prints nothing."""
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    def report(done: int) -> None:
        if is_terminal:
            line = f"slice {number + 1} of {slices}: {done} of {size} {unit}"
            print(f"\r{line}\x1b[K\r", end="", flush=True)

    return report
