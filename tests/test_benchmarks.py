"""The benchmark runs, and says what it measured. What it measures is no matter for a test."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("adapter", ["sqlite", "postgres"])
def test_a_small_benchmark_prints_and_writes_its_ratios(adapter: str, tmp_path: Path) -> None:
    file = tmp_path / "ratios.json"
    command = ["-m", "benchmarks.claim", "--quick", "--adapter", adapter, "--json", str(file)]

    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    ratios = json.loads(file.read_text())["adapters"][adapter]
    assert len(ratios) == 6
    for ratio in ratios:
        assert ratio["beside"] in done.stdout


@pytest.mark.parametrize("adapter", ["sqlite", "postgres"])
def test_the_latency_benchmark_prints_its_percentiles(adapter: str) -> None:
    command = ["-m", "benchmarks.latency", "--runs", "5", "--adapter", adapter]

    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("p99") == 3
