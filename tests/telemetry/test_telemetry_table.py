"""The table of log records and metrics is complete, and the code says nothing beside it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.telemetry import table
from perdure.telemetry.metric import Kind, Metric
from perdure.telemetry.metrics import METRICS
from perdure.telemetry.record import STANDARD, Record
from perdure.telemetry.table import RECORDS

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src/perdure").rglob("*.py"))
SAYING = {"say": 0, "say_with_error": 0, "say_on": 1}
PLAIN = {"debug", "info", "warning", "error", "exception", "critical"}
FORWARDING = {
    "cli/development/sample_app.py",
    "engine/targets/shell.py",
    "engine/execution/processes.py",
    "engine/observability/handler_log.py",
    "telemetry/record.py",
}
"""Where lines that somebody else has said are passed on; and a handler, which is somebody else."""

NAMED = {name: value for name, value in vars(table).items() if isinstance(value, Record | Metric)}


def calls(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node


def of_table(node: ast.AST) -> str | None:
    """`NAME` of `table.NAME`."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id == "table" else None
    return None


def said() -> list[tuple[str, ast.Call]]:
    """Every record that is said, and the call that says it."""
    found = []
    for path in SOURCES:
        for call in calls(path):
            assert isinstance(call.func, ast.Attribute)
            name = of_table(call.func.value)
            if name is not None and call.func.attr in SAYING:
                found.append((name, call))
    return found


def mentioned() -> set[str]:
    return {
        name
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if (name := of_table(node)) is not None
    }


def test_the_search_finds_what_is_said() -> None:
    assert len(said()) > 20


def test_each_record_is_said_with_exactly_its_fields() -> None:
    wrong = []
    for name, call in said():
        record = NAMED[name]
        assert isinstance(record, Record)
        assert isinstance(call.func, ast.Attribute)
        given = sorted(str(keyword.arg) for keyword in call.keywords)
        if given != sorted(record.fields) or len(call.args) != SAYING[call.func.attr]:
            wrong.append(ast.unparse(call))

    assert wrong == []


def test_whatever_stands_in_the_table_is_used_and_nothing_else_is() -> None:
    types = {"Record", "Metric", "Kind"}

    assert mentioned() - types == set(NAMED)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_nobody_logs_past_the_table(path: Path) -> None:
    if path.relative_to(ROOT / "src/perdure").as_posix() in FORWARDING:
        return

    past = [
        ast.unparse(call)
        for call in calls(path)
        if isinstance(call.func, ast.Attribute)
        and (call.func.attr in PLAIN or call.func.attr == "log")
        and re.search(r"\blog(ger|ging)?\b|getLogger", ast.unparse(call.func.value))
    ]

    assert past == []


def test_no_two_records_are_alike_and_no_field_is_loggings_own() -> None:
    assert len({(record.logger, record.message) for record in RECORDS}) == len(RECORDS)
    assert not {field for record in RECORDS for field in record.fields} & STANDARD
    assert all(record.meaning for record in RECORDS)


def test_a_message_shows_only_fields_that_its_record_has() -> None:
    placeholder = re.compile(r"%\((\w+)\)s")
    for record in RECORDS:
        assert set(placeholder.findall(record.message)) <= set(record.fields)
        assert "%" not in placeholder.sub("", record.message)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_named_as_its_kind_asks(metric: Metric) -> None:
    assert re.fullmatch(r"perdure_[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith("_total") is (metric.kind is Kind.COUNTER)
    assert metric.name.endswith("_seconds") is (metric.unit == "s")
    assert bool(metric.buckets) is (metric.kind is Kind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert metric.help.endswith(".")
    assert "run_id" not in metric.labels


def test_no_two_metrics_share_a_name() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
