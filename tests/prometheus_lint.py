"""What `promtool check metrics` has to say about a page of metrics, as far as its rules go.

promtool itself is no Python package. The rules are those of its linter, each with its own words;
besides, the page is read by the strictest reader there is in Python, which wants OpenMetrics.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_strictly
from prometheus_client.parser import text_string_to_metric_families as read
from prometheus_client.samples import Sample

NOT_BASE_UNITS = re.compile(
    r"_(milliseconds?|microseconds?|nanoseconds?|minutes?|hours?|days?|weeks?|bits?|kilobytes?|"
    r"megabytes?|gigabytes?|percent(age)?|celsius_degrees|fahrenheit|inches|miles)(_|$)"
)
ABBREVIATED = re.compile(r"_(s|ms|us|ns|sec|secs|b|kb|mb|gb|tb|h|m|d)(_total)?$")
KINDS = ("counter", "gauge", "histogram", "summary", "untyped")
RESERVED = ("_bucket", "_count", "_sum")
NAME = re.compile(r"[a-z][a-z0-9_]*")


def flaws(page: str) -> list[str]:
    """Everything that is not as it should be; none: promtool would say nothing."""
    return [*_of_lines(page), *_of_families(page), *_of_series(page), *_read_strictly(page)]


def _of_lines(page: str) -> Iterator[str]:
    if not page.endswith("\n"):
        yield "the last line has no end"
    for keyword in ("HELP", "TYPE"):
        named = re.findall(rf"^# {keyword} (\S+)", page, re.MULTILINE)
        yield from (f"{it}: {keyword} twice" for it, n in Counter(named).items() if n > 1)
    order = [_family(line) for line in page.splitlines()]
    seen = [name for name, _ in groupby(order)]
    yield from (f"{it}: its lines are not together" for it, n in Counter(seen).items() if n > 1)


def _family(line: str) -> str:
    name = line.split()[2] if line.startswith("#") else re.split(r"[{ ]", line)[0]
    return re.sub(r"_(bucket|sum|count)$", "", name) if not line.startswith("#") else name


def _of_families(page: str) -> Iterator[str]:
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    helps = dict(re.findall(r"^# HELP (\S+) (.+)$", page, re.MULTILINE))
    for name in kinds.keys() | helps.keys() | set(map(_family, page.splitlines())):
        if name not in helps:
            yield f"{name}: no help text"
        if name not in kinds:
            yield f"{name}: no type"
        yield from (f"{name}: {it}" for it in _misnamed(name, kinds.get(name, "untyped")))


def _misnamed(name: str, kind: str) -> Iterator[str]:
    if not NAME.fullmatch(name):
        yield "metric names should be written in 'snake_case', without colons"
    if (kind == "counter") is not name.endswith("_total"):
        yield "counter metrics, and no others, should have a '_total' suffix"
    if name.endswith(RESERVED):
        yield f"should not end as the series of histograms do: {RESERVED}"
    if NOT_BASE_UNITS.search(name):
        yield "use base units: seconds, bytes, ratio"
    if ABBREVIATED.search(name):
        yield "should not contain abbreviated units"
    if any(f"_{it}" in name for it in KINDS):
        yield "should not include its type"


def _of_series(page: str) -> Iterator[str]:
    samples = [sample for family in read(page) for sample in family.samples]
    series = Counter((it.name, tuple(sorted(it.labels.items()))) for it in samples)
    yield from (f"{it}: there twice" for it, n in series.items() if n > 1)
    for sample in samples:
        yield from (f"{sample.name}: {it}" for it in _mislabelled(sample))


def _mislabelled(sample: Sample) -> Iterator[str]:
    for label in sample.labels:
        if not NAME.fullmatch(label) or label.startswith("__"):
            yield f"label {label} should be written in 'snake_case'"
        if label == "le" and not sample.name.endswith("_bucket"):
            yield "only buckets have the label le"
    if sample.name.endswith("_total") and not sample.value >= 0:
        yield f"a counter is {sample.value}"


def _read_strictly(page: str) -> Iterator[str]:
    """Cumulative buckets up to +Inf, counts that fit, labels that are quoted: whatever the strict
    reader insists on."""
    renamed = re.sub(r"^(# (?:HELP|TYPE) \S+?)_total ", r"\1 ", page, flags=re.MULTILINE)
    try:
        for family in read_strictly(f"{renamed}# EOF\n"):  # type: ignore[no-untyped-call]  # it is not
            assert family.documentation
    except (ValueError, AssertionError) as error:
        yield f"unreadable: {error}"
