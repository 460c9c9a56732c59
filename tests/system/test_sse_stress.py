"""A short version of `tests/sse_stress.py`; the long one is run by hand."""

from pathlib import Path

import pytest

from sse_stress import has_grown, run


@pytest.mark.system
def test_many_streams_and_writers_on_one_server_meet_no_error(tmp_path: Path) -> None:
    reports = run(tmp_path, streams=100, writers=20, seconds=2, url=None, rounds=2)

    assert not has_grown(reports)
    for report in reports:
        assert report.written > 50
        assert (report.refused, report.missed, report.cut) == (0, 0, 0)
        assert report.told == 100 * report.written
