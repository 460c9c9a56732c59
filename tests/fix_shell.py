"""A shell for tests of the command line."""

from pathlib import Path

import pytest

from command import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)
