"""Which code a campaign runs."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

PROOF = "docs/proof.md"


class NotInGit(Exception):
    """The tree is not a git checkout, so that a result could not be attributed to a commit."""


def identify_commit(root: Path) -> str:
    """Return the commit, with a hash of all changes that are not committed.

    docs/proof.md does not count: campaigns themselves append to it.
    """
    commit = _git(root, "rev-parse", "--short=12", "HEAD").strip()
    changes = hashlib.sha256(_git(root, "diff", "HEAD", "--", ".", f":(exclude){PROOF}").encode())
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z").split("\0")
    names = sorted(name for name in untracked if name not in ("", PROOF))
    for name in names:
        changes.update(name.encode() + b"\0" + (root / name).read_bytes())
    is_clean = changes.hexdigest() == hashlib.sha256().hexdigest()
    return commit if is_clean else f"{commit}+{changes.hexdigest()[:8]}"


def _git(root: Path, *arguments: str) -> str:
    try:
        command = ["git", "-C", str(root), *arguments]
        found = subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotInGit(
            f"{root} is not a git checkout with a commit. `make prove` needs one, because each "
            f"result is recorded with its commit."
        ) from error
    return found.stdout
