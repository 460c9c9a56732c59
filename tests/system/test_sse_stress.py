"""A short version of `tests/sse_stress.py`; the long one is run by hand."""

from pathlib import Path

import pytest

from sse_stress import run


@pytest.mark.system
def test_many_streams_and_writers_on_one_server_meet_no_error(tmp_path: Path) -> None:
    report = run(tmp_path, streams=100, writers=20, seconds=3, url=None)

    assert report.written > 50
    assert (report.refused, report.behind, report.cut) == (0, 0, 0)
    assert report.told == 100 * report.written
