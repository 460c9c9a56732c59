"""The campaign of many streams and many writers."""

from __future__ import annotations

from prove import Outcome, Slice, campaign, require
from sse_stress import has_grown, run

STREAMS = 1000
WRITERS = 200
ROUNDS = 3


@campaign(
    "streams",
    f"{STREAMS} streams beside {WRITERS} writers on one server: each stream gets each change once, "
    f"and memory does not grow.",
    unit="writes",
    size=30_000,
    slice_size=30_000,
)
def streams(part: Slice) -> Outcome:
    writes = max(part.size // (WRITERS * ROUNDS), 1)
    reports = run(part.directory, STREAMS, WRITERS, writes, part.url, ROUNDS)
    for number, report in enumerate(reports, 1):
        require(report.is_fine, f"round {number}: {report}")
        part.report(sum(it.written for it in reports[:number]))
    require(not has_grown(reports), f"memory grew: {[it.memory for it in reports]}")
    return Outcome(
        {
            "written": sum(it.written for it in reports),
            "messages": sum(it.told for it in reports),
            "max_memory_bytes": max(it.memory for it in reports),
        }
    )
