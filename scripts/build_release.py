"""Builds the wheel and the sdist in an environment of their own, which holds nothing but the locked
files: pip refuses any other. Run by `make dist`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "release.txt"
DIST = ROOT / "dist"


def main() -> int:
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="perdure-release-") as directory:
        python = make_environment(Path(directory))
        locked = ["--require-hashes", "--only-binary", ":all:", "--no-deps", "-r", str(LOCK)]
        pip(python, "install", *locked)
        run(str(python), "-m", "hatchling", "build", "-d", str(DIST))
        [wheel] = DIST.glob("*.whl")
        pip(python, "install", "--no-deps", "--no-index", str(wheel))
        pip(python, "check")
        run(str(python), "-m", "perdure", "--version")
    for path in sorted(DIST.iterdir()):
        print(f"built {path.relative_to(ROOT)}")
    return 0


def make_environment(directory: Path) -> Path:
    """An empty one. It has no pip of its own: the one that runs this installs into it."""
    run(sys.executable, "-m", "venv", "--without-pip", str(directory))
    return directory / "bin" / "python"


def pip(python: Path, *arguments: str) -> None:
    options = ("--quiet", "--disable-pip-version-check", "--no-input")
    run(sys.executable, "-m", "pip", "--python", str(python), *arguments, *options)


def run(*command: str) -> None:
    """Raises CalledProcessError. The time in archives is that of the commit, not of the build."""
    shown = ["git", "log", "-1", "--format=%ct"]
    committed = subprocess.run(shown, cwd=ROOT, capture_output=True, text=True, check=True)
    variables = os.environ | {"SOURCE_DATE_EPOCH": committed.stdout.strip()}
    subprocess.run(command, cwd=ROOT, env=variables, check=True)


if __name__ == "__main__":
    sys.exit(main())
