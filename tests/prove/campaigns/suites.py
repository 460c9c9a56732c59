"""Campaigns that run parts of the test suite with other settings, one file after the other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from prove import Outcome, Slice, campaign, require

TESTS = Path(__file__).parent.parent.parent
PROPERTY_FILES = sorted(
    path
    for path in TESTS.rglob("test_*.py")
    if re.search(r"^(from|import) hypothesis", path.read_text(), re.MULTILINE)
)
TIMED_FILES = sorted(
    path for path in TESTS.rglob("test_*.py") if "pytest.mark.timed" in path.read_text()
)


@campaign(
    "properties",
    "Run every file of property-based tests with 2,000 examples a test instead of 100.",
    unit="files",
    size=len(PROPERTY_FILES),
    slice_size=1,
    databases=(),
)
def properties(part: Slice) -> Outcome:
    file = PROPERTY_FILES[part.number % len(PROPERTY_FILES)]
    options = [f"--hypothesis-seed={part.seed}", "-o", "timeout=0"]
    return _run_pytest(file, part.directory, *options, profile="thorough")


@campaign(
    "bounds",
    "Run the tests that assert how long something takes. The machine must be quiet.",
    unit="files",
    size=len(TIMED_FILES),
    slice_size=1,
    databases=(),
)
def bounds(part: Slice) -> Outcome:
    file = TIMED_FILES[part.number % len(TIMED_FILES)]
    return _run_pytest(file, part.directory, "-m", "timed", profile="ci")


def _run_pytest(file: Path, directory: Path, *options: str, profile: str) -> Outcome:
    log = directory / "pytest.log"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file), *options]
    environment = os.environ | {"PERDURE_HYPOTHESIS_PROFILE": profile}
    with log.open("wb") as output:
        code = subprocess.call(command, cwd=TESTS.parent, stdout=output, env=environment)
    summary = (log.read_text().strip().splitlines() or [""])[-1]
    require(code == 0, f"{file.relative_to(TESTS)}: {summary}")
    found = re.search(r"(\d+) passed", summary)
    return Outcome({"files": 1, "passed": int(found[1]) if found else 0})
