"""The benchmarks run, and say what they measured. What they measure is no matter for a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from benchmarks import page  # noqa: E402  # not installed, so its place must be named first
from benchmarks.contenders import (  # noqa: E402
    CEILING,
    CELERY,
    CONTENDERS,
    PERDURE_POSTGRES,
    PERDURE_SQLITE,
    PGBOSS,
    PGQUEUER,
)
from benchmarks.limits import LIMITS  # noqa: E402
from benchmarks.measures import MEASURES  # noqa: E402
from benchmarks.results import VALUES, Results, percentile, shown  # noqa: E402
from benchmarks.targets import TARGETS, asked, judged  # noqa: E402


def benchmark(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("adapter", ["sqlite", "postgres"])
def test_a_small_claim_benchmark_prints_and_writes_its_ratios(adapter: str, tmp_path: Path) -> None:
    file = tmp_path / "ratios.json"

    done = benchmark("benchmarks.claim", "--quick", "--adapter", adapter, "--json", str(file))

    assert done.returncode == 0, done.stderr
    ratios = json.loads(file.read_text())["adapters"][adapter]
    assert len(ratios) == 9
    for ratio in ratios:
        assert ratio["beside"] in done.stdout


@pytest.mark.parametrize(
    ("adapter", "contender"), [("sqlite", PERDURE_SQLITE), ("postgres", PERDURE_POSTGRES)]
)
def test_a_quick_run_measures_ours_with_real_workers(
    adapter: str, contender: str, tmp_path: Path
) -> None:
    file = tmp_path / "results.json"
    only = "drain2,latency,cost"

    done = benchmark(
        "benchmarks", "--quick", "--peers", "none", "--adapter", adapter, "--only", only,
        "--json", str(file),
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    results = Results.read(file)
    for value in ("drain2", "start_p99", "bytes_left"):
        assert (results.median(value, contender) or 0) > 0, value
    assert 0 < (results.median("drain_statements", contender) or 0) < 1
    assert "prove nothing" in done.stdout


def test_a_quick_run_grows_a_database_and_pins_it(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    only = "growth,retention,pressure,imports"

    done = benchmark(
        "benchmarks", "--quick", "--peers", "none", "--adapter", "sqlite", "--only", only,
        "--json", str(file),
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    results = Results.read(file)
    names = [place["name"] for place in results.growth["sqlite"]]
    assert names == ["empty", "finished_100000", "finished_1000000", "future", "queues", "keys"]
    assert all(place["drain"][0] > 0 for place in results.growth["sqlite"])
    assert len(results.pressure[PERDURE_SQLITE]["pinned"]) >= 3
    assert results.retention["sqlite"]["kept"][0] > 0
    assert results.imports["import perdure"][0] > 0


def test_the_ceiling_is_measured_both_ways(tmp_path: Path) -> None:
    file = tmp_path / "results.json"

    done = benchmark(
        "benchmarks", "--quick", "--adapter", "sqlite", "--only", "drain,life", "--json", str(file)
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    results = Results.read(file)
    assert list(results.samples["life"]) == [CEILING]
    text = page.make(results)["benchmarks.md"]
    for value in ("life", "drain"):
        rate = shown(results.median(value, CEILING) or 0, "jobs/s")
        assert f"| {VALUES[value].title} | {rate} |" in text


def test_a_peer_that_cannot_be_had_is_left_out_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "results.json"

    done = benchmark(
        "benchmarks", "--quick", "--peers", CELERY, "--adapter", "sqlite", "--only", "single",
        "--json", str(file), PATH=str(tmp_path),
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "left out: Celery on redis: needs redis-server" in done.stderr
    assert list(Results.read(file).samples["single"]) == [PERDURE_SQLITE]


def test_an_unknown_measurement_is_refused_by_name() -> None:
    done = benchmark("benchmarks", "--only", "warp")

    assert done.returncode == 2
    assert "'warp' is none of single, concurrent" in done.stderr


@pytest.mark.parametrize("name", CONTENDERS)
def test_every_contender_documents_its_settings(name: str) -> None:
    assert len(CONTENDERS[name].says()) > 100


def some_results() -> Results:
    results = Results()
    results.conditions = {"cores": 2, "postgres": {"fsync": "on"}}
    for name in (PERDURE_POSTGRES, PGQUEUER):
        contender = CONTENDERS[name]
        results.contenders[name] = {
            "title": contender.title,
            "version": "1",
            "store": contender.store,
            "keeps": contender.keeps,
            "settings": contender.says(),
        }
    for rate in (11_000, 13_000, 12_000):
        results.add(PERDURE_POSTGRES, {"drain": rate})
    results.add(PGQUEUER, {"drain": 8_000})
    results.skipped[CELERY] = "needs redis-server"
    return results


def test_a_ratio_is_that_of_medians() -> None:
    [verdict] = judged(some_results())

    assert (verdict.value, verdict.is_met) == (1.5, True)


def test_a_missed_target_is_told() -> None:
    results = some_results()
    results.samples["drain"][PGQUEUER] = [12_000]

    assert "| 1.00 x | ≥ 1.2 x | **missed** |" in page.make(results)["benchmarks.md"]


def test_what_is_missed_is_explained_with_its_profile() -> None:
    results = some_results()
    results.add(PERDURE_POSTGRES, {"start_p50": 4.0})
    results.add(PGQUEUER, {"start_p50": 3.0})

    files = page.make(results)

    assert "**Start, p50: of PgQueuer's: 1.33 (≤ 1 x).** A claim here" in files["benchmarks.md"]
    assert "search for due runs" in files["benchmarks/limit_start.svg"]


def test_what_is_met_needs_no_explanation() -> None:
    assert "and why" not in page.make(some_results())["benchmarks.md"]


def test_limits_speak_of_targets_that_there_are() -> None:
    known = {target.says for target in TARGETS}

    assert known >= {target for limit in LIMITS for target in limit.targets}


def test_the_page_tells_medians_conditions_settings_and_who_was_left_out() -> None:
    text = page.make(some_results())["benchmarks.md"]

    assert "| Perdure, PostgreSQL | 12,000 ± 8 % |" in text
    assert "| PgQueuer, PostgreSQL | 1.5 |" in text
    assert "- PostgreSQL: fsync on" in text
    assert "batches of 500" in text
    assert "- Celery on Redis: needs redis-server" in text


def test_a_chart_is_well_formed_and_longest_first() -> None:
    chart = page.make(some_results())["benchmarks/drain.svg"]

    bars = ElementTree.fromstring(chart).findall("{http://www.w3.org/2000/svg}rect")
    widths = [float(bar.get("width", "0")) for bar in bars]
    assert widths == [pytest.approx(1.5 * widths[1], rel=0.01), widths[1]]
    assert "prefers-color-scheme: dark" in chart


def test_growth_and_retention_have_their_tables() -> None:
    results = some_results()
    place = {"name": "empty", "beside": "nothing", "drain": [9.0, 11.0], "claim": [1.0]}
    results.growth["sqlite"] = [place, {**place, "beside": "much", "drain": [5.0]}]
    rates = {"kept": [1.0], "going": [2.0], "forgotten": [3.0], "alone": [4.0]}
    results.retention["sqlite"] = rates

    files = page.make(results)

    assert "| much | 5 jobs/s | 0.50 |" in files["benchmarks.md"]
    assert "| SQLite | 1 runs/s | 2 runs/s | 3 runs/s | 4 runs/s |" in files["benchmarks.md"]
    assert "much" in files["benchmarks/growth_sqlite.svg"]


def test_only_what_a_promise_speaks_of_is_measured_if_so_asked() -> None:
    pairs = asked()
    races = {
        measure.name: {one.name for one in CONTENDERS.values() if measure.is_asked(one, pairs)}
        for measure in MEASURES.values()
    }

    assert races["drain2"] == races["end_to_end"] == races["single"] == {PERDURE_POSTGRES, PGQUEUER}
    assert races["latency"] == {PERDURE_POSTGRES, PERDURE_SQLITE, PGQUEUER}
    assert races["cost"] == races["bulk"] == set()
    assert PGBOSS not in set().union(*races.values())


def test_environments_can_be_kept_elsewhere(tmp_path: Path) -> None:
    done = benchmark(
        "benchmarks", "--quick", "--peers", "none", "--adapter", "sqlite", "--only", "imports",
        PERDURE_BENCH_HOME=str(tmp_path / "bench"),
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "bench" / "results.json").exists()


def test_a_quick_run_makes_no_page(tmp_path: Path) -> None:
    results = some_results()
    results.conditions["quick"] = True
    results.write(tmp_path / "results.json")

    assert page.main([str(tmp_path / "results.json"), "--into", str(tmp_path)]) == 1
    assert not (tmp_path / "benchmarks.md").exists()


def test_a_further_run_brings_what_is_missing_and_is_told_of(tmp_path: Path) -> None:
    some_results().write(tmp_path / "results.json")
    further = some_results()
    further.conditions = {"when": "later", "rounds": 1}
    further.add(PGQUEUER, {"drain": 1, "bulk": 40_000})
    further.write(tmp_path / "further.json")

    names = [str(tmp_path / name) for name in ("results.json", "further.json")]
    assert page.main([*names, "--into", str(tmp_path)]) == 0

    text = (tmp_path / "benchmarks.md").read_text()
    assert "| PgQueuer, PostgreSQL | 40,000 | 8,000 |" in text
    assert "- from a run of later (rounds 1, " in text
    assert "bulk calls of 500 (1)" in text


def test_places_are_compared_within_the_run_that_has_most_of_them() -> None:
    few, many = some_results(), some_results()
    place = {"name": "empty", "beside": "nothing", "drain": [1.0], "claim": [1.0]}
    few.growth = {"sqlite": [place]}
    many.growth = {"sqlite": [{**place, "drain": [2.0]}, {**place, "name": "much"}]}

    few.complete(many)
    many.complete(few)

    assert few.growth["sqlite"][0]["drain"] == many.growth["sqlite"][0]["drain"] == [2.0]
    assert few.others[0]["brought"]["growth"] == ["sqlite"]


def test_results_survive_being_written_and_read(tmp_path: Path) -> None:
    results = some_results()
    results.write(tmp_path / "results.json")

    assert vars(Results.read(tmp_path / "results.json")) == vars(results)


def test_a_percentile_is_one_of_the_samples() -> None:
    samples = [float(number) for number in range(1, 101)]

    assert percentile(samples, 0.5) == 51
    assert percentile(samples, 0.99) == 100
    assert percentile([7.0], 0.99) == 7


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(12_345.6, "jobs/s", "12,346 jobs/s"), (0.0042, "", "0.0042"), (2_500, "bytes", "2.5 kB")],
)
def test_numbers_are_shown_as_people_read_them(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text
