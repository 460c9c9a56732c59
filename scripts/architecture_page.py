"""The generated part of the page about the architecture: packages, their purpose, their layers."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from scripts.reference_pages import table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
SOURCE = ROOT / "src" / "perdure"
BEGIN = "<!-- Made by scripts/generate_docs.py from src and pyproject.toml: begin -->"
END = "<!-- Made by scripts/generate_docs.py from src and pyproject.toml: end -->"
FIRST_SENTENCE = re.compile(r"(.+?\.)(?:\s|$)", re.DOTALL)

ABOUT_ENGINE = """\
From top to bottom: a package imports only packages below it, and those below `engine`."""

Layers = list[list[str]]
"""Packages from top to bottom. Those of one layer do not import each other."""


def architecture() -> str:
    """Return the page with its generated part made anew; the rest is written by hand."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return "".join([before, BEGIN, "\n\n", packages(), "\n\n", END, after])


def packages() -> str:
    contracts = read_contracts()
    top, engine = layers_of(contracts["Layers"]), layers_of(contracts["Packages of the engine"])
    parts = [_diagram(top), table(("package", "purpose", "may import"), _rows(top))]
    for name in sorted(it for it in chain(*top) if subpackages(it)):
        parts.append(f"### `{name}`")
        if name == "engine":
            parts.append(ABOUT_ENGINE)
        names = [*chain(*engine)] if name == "engine" else subpackages(name)
        parts.append(table(("package", "purpose"), _purposes(name, names)))
    return "\n\n".join(parts)


def read_contracts() -> dict[str, Any]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {it["name"]: it for it in settings["tool"]["importlinter"]["contracts"]}


def layers_of(contract: dict[str, Any]) -> Layers:
    return [[it.strip(" ()") for it in layer.split("|")] for layer in contract["layers"]]


def subpackages(name: str) -> list[str]:
    return sorted(path.parent.name for path in (SOURCE / name).glob("*/__init__.py"))


def purpose(package: Path) -> str:
    """Return the first sentence of a package's docstring."""
    text = (package / "__init__.py").read_text(encoding="utf-8")
    found = FIRST_SENTENCE.match(ast.get_docstring(ast.parse(text)) or "")
    if found is None:
        raise SystemExit(f"{package} needs a docstring that begins with a sentence")
    return " ".join(found[1].split())


def _diagram(layers: Layers) -> str:
    names = [" · ".join(layer) for layer in layers]
    nodes = [f'    L{at}["{name}"]' for at, name in enumerate(names)]
    arrows = [f"    L{at} --> L{at + 1}" for at in range(len(names) - 1)]
    return "\n".join(["```mermaid", "flowchart TD", *nodes, *arrows, "```"])


def _rows(layers: Layers) -> Iterator[tuple[str, ...]]:
    for at, layer in enumerate(layers):
        below = ", ".join(f"`{name}`" for under in layers[at + 1 :] for name in under)
        for name in layer:
            yield f"`{name}`", purpose(SOURCE / name), below or "nothing of Perdure"


def _purposes(folder: str, names: list[str]) -> Iterator[tuple[str, ...]]:
    for name in names:
        yield f"`{folder}/{name}`", purpose(SOURCE / folder / name)
