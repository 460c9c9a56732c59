"""Every link, path and module that a page, a decision record or a docstring names exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = ("src", "tests", "benchmarks", "examples", "scripts")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

LINK = re.compile(r"\[[^\]]*\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
FENCED_OR_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
PATH = re.compile(rf"(?<![\w/.-])(?:{'|'.join(CODE)})/[\w/*]+(?:\.[a-z]+|/)?(?![\w/-])")
SHORT_PATH = re.compile(
    r"(?<![\w/.-])(?:api|app|cli|core|engine|errors|net|storage|telemetry|testing|web)/[\w/]+\.(?:py|sql)\b"
)
DOTTED = re.compile(
    r"(?<![\w.])perdure\.(?:api|app|cli|core|engine|errors|net|storage|telemetry|testing|web)(?:\.\w+)+"
)
SUPERSEDED = re.compile(r"^Status: Superseded by", re.MULTILINE)
OF_READERS = {"tests/test_shop.py"}
"""Files of an example project on a page."""


def current_pages() -> Iterator[Path]:
    """Yield all pages but the history of releases and of decisions that were replaced: these may
    name what was there then."""
    for page in PAGES:
        if page.name != "CHANGELOG.md" and not SUPERSEDED.search(page.read_text(encoding="utf-8")):
            yield page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    broken = [
        f"{path}#{anchor}" if anchor else path
        for path, anchor in LINK.findall(FENCED_OR_CODE.sub("", page.read_text(encoding="utf-8")))
        if not leads_somewhere(page, path, anchor)
    ]

    assert broken == []


@pytest.mark.parametrize("page", [*current_pages()], ids=lambda page: page.name)
def test_every_path_and_module_on_a_page_exists(page: Path) -> None:
    text = LINK.sub("", page.read_text(encoding="utf-8"))

    assert list(missing_names(text)) == []


@pytest.mark.parametrize("folder", CODE)
def test_every_path_and_module_in_a_docstring_exists(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for text in docstrings(path)
        for name in missing_names(text)
    ]

    assert found == []


def leads_somewhere(page: Path, path: str, anchor: str) -> bool:
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    titles = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def missing_names(text: str) -> Iterator[str]:
    paths = set(PATH.findall(text)) - OF_READERS
    yield from (path for path in sorted(paths) if not list(ROOT.glob(path)))
    sources = ROOT / "src" / "perdure"
    yield from (path for path in SHORT_PATH.findall(text) if not (sources / path).exists())
    yield from (name for name in DOTTED.findall(text) if not is_defined(name))


def is_defined(dotted: str) -> bool:
    """Return whether a module has this name, or something in a module."""
    parts = dotted.split(".")
    length = next(it for it in range(len(parts), 0, -1) if is_module(parts[:it]))
    value: object = import_module(".".join(parts[:length]))
    for name in parts[length:]:
        if not hasattr(value, name):
            return False
        value = getattr(value, name)
    return True


def is_module(parts: list[str]) -> bool:
    path = ROOT.joinpath("src", *parts)
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def docstrings(path: Path) -> Iterator[str]:
    """Yield every text that stands alone as a statement: docstrings, also those of constants."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Expr(ast.Constant(str(text))):
                yield text
