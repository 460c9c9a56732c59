"""Load a developer's own sources without cached bytecode, and record what was loaded.

Python takes a `.pyc` file for current if it names the size of its source and the source's time of
change in whole seconds. A source that changes twice within a second, at equal length, keeps the
bytecode of the first version. Any process may have written that file, before this one started too.

So `perdure dev` reads and writes no bytecode of own sources: those outside of the standard library,
of installed packages and of Perdure. Libraries keep theirs, because compiling them takes long, and
no file is deleted. Every loader of source files derives from `SourceFileLoader`, also those
of editable installs and of `spec_from_file_location`, and two of its documented methods decide:
`path_stats` (Python uses no bytecode if it raises OSError) and `get_data` (returns what is
compiled). Both are replaced in this process, and, by a variable, in its worker processes.
"""

from __future__ import annotations

import os
from hashlib import sha256
from importlib.abc import FileLoader
from importlib.machinery import SourceFileLoader
from typing import Any

VARIABLE = "PERDURE_DEV_IGNORE_BYTECODE"
"""Set for the worker processes of `perdure dev`."""
INSTALLED = frozenset({"site-packages", "dist-packages"})
LIBRARIES = tuple(
    os.path.join(os.path.dirname(path), "")
    for path in (os.__file__, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
)
"""The directories of the standard library and of Perdure."""

Digests = dict[str, bytes]


def digest_of(source: bytes) -> bytes:
    return sha256(source).digest()


def is_own(path: str) -> bool:
    """Return whether the source at `path` belongs to no library."""
    return not path.startswith(LIBRARIES) and INSTALLED.isdisjoint(path.split(os.sep))


def ignore_bytecode() -> Digests:
    """Compile own sources anew, here and in worker processes that start later.

    Return the digest of each own source, by path. A source is added when it is first loaded.
    """
    os.environ[VARIABLE] = "1"
    loaded: Digests = {}
    stat_source, read_file = SourceFileLoader.path_stats, SourceFileLoader.get_data

    def path_stats(self: SourceFileLoader, path: Any) -> Any:
        if is_own(os.fspath(path)):
            raise OSError("perdure dev uses no bytecode of this source")
        return stat_source(self, path)

    def get_data(self: FileLoader, path: str) -> bytes:
        data = read_file(self, path)
        if path == self.path and is_own(self.path):
            loaded.setdefault(os.path.abspath(self.path), digest_of(data))
        return data

    SourceFileLoader.path_stats = path_stats  # type: ignore[method-assign]  # see the module's text
    SourceFileLoader.get_data = get_data  # type: ignore[method-assign]  # likewise
    return loaded


def ignore_bytecode_in_child() -> None:
    """Do the same in a worker process, if `perdure dev` has started it."""
    if VARIABLE in os.environ:
        ignore_bytecode()
