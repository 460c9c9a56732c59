"""Writes the documentation that is made from code; with `--check`, only says whether it is
current (exit status 1 if not). Run by `make docs`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "tests")]

from scripts import (  # noqa: E402  # the path must be set first
    adr_page,
    architecture_page,
    http_page,
    lifecycle_svg,
    manifest_page,
    operations_page,
    reference_pages,
    roles_page,
    schedule_page,
    settings_page,
    telemetry_page,
)

PAGES = {
    "docs/architecture.md": architecture_page.architecture,
    "docs/adr/README.md": adr_page.adr_index,
    "docs/images/lifecycle.svg": lifecycle_svg.draw,
    "docs/reference/lifecycle.md": reference_pages.lifecycle,
    "docs/reference/seed-conformance.md": reference_pages.seed_conformance,
    "docs/reference/errors.md": reference_pages.error_page,
    "docs/reference/http-routes.md": http_page.http_routes,
    "docs/reference/operations.md": operations_page.operations,
    "docs/reference/telemetry.md": telemetry_page.telemetry,
    "docs/reference/schedules.md": schedule_page.schedules,
    "docs/reference/manifests.md": manifest_page.manifests,
    "docs/reference/postgres-roles.md": roles_page.roles,
    "docs/reference/settings.md": settings_page.settings,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    check: bool = parser.parse_args().check
    stale = [name for name, make in PAGES.items() if _read(name) != make()]
    if check:
        for name in stale:
            print(f"{name} is out of date. Run: make docs", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PAGES[name](), encoding="utf-8")
        print(f"wrote {name}")
    return 0


def _read(name: str) -> str | None:
    path = ROOT / name
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
