"""Streams and writers on one server; `make prove CAMPAIGN=streams` is the campaign."""

from pathlib import Path

import pytest

from sse_stress import has_grown, run


@pytest.mark.system
def test_many_streams_and_writers_on_one_server_meet_no_error(
    sqlite_storage_url: str, tmp_path: Path
) -> None:
    reports = run(tmp_path, streams=100, writers=20, writes=6, url=sqlite_storage_url, rounds=2)

    assert not has_grown(reports)
    for report in reports:
        assert (report.written, report.refused, report.missed, report.cut) == (120, 0, 0, 0)
        assert report.told == 100 * report.written
