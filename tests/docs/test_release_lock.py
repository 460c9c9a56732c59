"""What a release is built with is pinned, file by file."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from scripts.lock_release import LOCK, read_lock, released_requirements, render  # noqa: E402


def locked_versions() -> dict[str, str]:
    return dict(iter(read_lock(LOCK.read_text())))


WANTED = [Requirement(it) for it in released_requirements()]
ON_THIS_PLATFORM = [it for it in WANTED if it.marker is None or it.marker.evaluate()]


@pytest.mark.parametrize("wanted", ON_THIS_PLATFORM, ids=str)
def test_the_lock_has_an_allowed_version_of_each_requirement(wanted: Requirement) -> None:
    version = locked_versions()[canonicalize_name(wanted.name)]

    assert wanted.specifier.contains(version, prereleases=True)
    for extra in wanted.extras:
        assert any(name.startswith(wanted.name) and extra in name for name in locked_versions())


def test_every_entry_of_the_lock_has_a_version_and_a_hash() -> None:
    text = LOCK.read_text()
    entries = [it for it in text.replace("\\\n", " ").splitlines() if not it.startswith("#")]
    pins = read_lock(text)

    assert len(entries) == len(pins) == len(locked_versions()) > 10
    assert all(pins.values())
    for entry in entries:
        assert re.fullmatch(r"[a-z0-9-]+==\S+(\s+--hash=sha256:[0-9a-f]{64})+", entry), entry


def test_the_lock_names_no_index_and_no_address() -> None:
    assert not re.search(r"://|--(?:extra-)?index-url|--find-links|@", LOCK.read_text())


def test_the_lock_is_written_as_it_is_read() -> None:
    assert render(read_lock(LOCK.read_text())) == LOCK.read_text()


def test_a_file_that_is_not_the_locked_one_is_refused(tmp_path: Path) -> None:
    """The options are those of `make dist`, the file has the right name and another content."""
    version = locked_versions()["h11"]
    with zipfile.ZipFile(tmp_path / f"h11-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("h11/__init__.py", "print('not h11')")
        folder = f"h11-{version}.dist-info"
        wheel.writestr(
            f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: h11\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{folder}/RECORD", "")
    only_h11 = {pin: hashes for pin, hashes in read_lock(LOCK.read_text()).items() if "h11" in pin}
    (tmp_path / "lock.txt").write_text(render(only_h11))
    options = ["--isolated", "--require-hashes", "--no-deps", "--no-index", "--target", "into"]
    python = getattr(sys, "_base_executable", sys.executable)  # an environment may have no pip
    command = [python, "-m", "pip", "install", *options, "-f", ".", "-r", "lock.txt"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "into").exists()
