"""Writes `requirements/release.txt`: exact versions, with hashes, of all that a release is built
and installed with. Run by `make lock`.

Of a package with compiled code, pip reports the file for this platform only. Hashes that an earlier
lock has for the same version stay, so that the lock grows when it is run on another platform.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "release.txt"
NOT_RELEASED = ("test",)
"""Extras that nobody installs to use Perdure."""
HEADER = """\
# Written by `make lock` from pyproject.toml; do not edit. `make dist` installs exactly these files.
"""

_PIN = re.compile(r"^(?P<name>[a-z0-9-]+)==(?P<version>\S+)")
_HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")

Hashes = dict[tuple[str, str], set[str]]
"""By name and version."""


def main() -> int:
    locked = resolve(released_requirements())
    known = read_lock(LOCK.read_text(encoding="utf-8")) if LOCK.exists() else {}
    for pin, hashes in locked.items():
        hashes |= known.get(pin, set())
    LOCK.parent.mkdir(exist_ok=True)
    LOCK.write_text(render(locked), encoding="utf-8")
    print(f"wrote {LOCK.relative_to(ROOT)}: {len(locked)} packages")
    return 0


def released_requirements() -> list[str]:
    """What pyproject.toml needs to build Perdure, and to run it with every extra."""
    project: Any = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    optional = [it for name, group in extras.items() if name not in NOT_RELEASED for it in group]
    return [*project["build-system"]["requires"], *project["project"]["dependencies"], *optional]


def resolve(requirements: list[str]) -> Hashes:
    """What pip would install for them into an empty environment."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        options = ["--dry-run", "--ignore-installed", "--only-binary", ":all:", "--quiet"]
        command = [sys.executable, "-m", "pip", "install", *options, "--report", str(report)]
        subprocess.run([*command, *requirements], check=True)
        installed = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {_pin(item): {_hash(item)} for item in installed}


def _pin(item: Any) -> tuple[str, str]:
    name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
    return name, item["metadata"]["version"]


def _hash(item: Any) -> str:
    return f"sha256:{item['download_info']['archive_info']['hashes']['sha256']}"


def read_lock(text: str) -> Hashes:
    pins: Hashes = {}
    for entry in text.replace("\\\n", " ").splitlines():
        if pin := _PIN.match(entry):
            pins[pin["name"], pin["version"]] = set(_HASH.findall(entry))
    return pins


def render(locked: Hashes) -> str:
    """No index and no address: pip finds the files wherever it is configured to look."""
    entries = (
        " \\\n".join([f"{name}=={version}", *(f"    --hash={it}" for it in sorted(hashes))])
        for (name, version), hashes in sorted(locked.items())
    )
    return HEADER + "".join(f"{entry}\n" for entry in entries)


if __name__ == "__main__":
    sys.exit(main())
