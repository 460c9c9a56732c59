"""Which modules import which, also only for type checkers or inside of functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

Graph = Mapping[str, frozenset[str]]


def import_graph(source: Path, package: str) -> Graph:
    """Return the modules of the package, each with those that it imports."""
    paths = {_module_name(path, source): path for path in (source / package).rglob("*.py")}
    return {name: _imports(path, frozenset(paths)) - {name} for name, path in paths.items()}


def import_cycles(graph: Graph) -> set[frozenset[str]]:
    """Return the largest groups whose modules all import each other, directly or through others."""
    reachable = {name: _reachable(name, graph) for name in graph}
    groups = (
        frozenset(it for it in reached if name in reachable[it])
        for name, reached in reachable.items()
    )
    return {group for group in groups if len(group) > 1}


def _module_name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path, modules: frozenset[str]) -> frozenset[str]:
    return frozenset(_names(ast.parse(path.read_text(encoding="utf-8")), modules)) & modules


def _names(tree: ast.Module, modules: frozenset[str]) -> Iterator[str]:
    """Yield what is imported. A module of a package stands for itself, not for the package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in modules else node.module


def _reachable(name: str, graph: Graph) -> frozenset[str]:
    found: set[str] = set()
    pending = [name]
    while pending:
        new = graph[pending.pop()] - found
        found |= new
        pending += new
    return frozenset(found)
