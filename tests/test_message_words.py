"""Errors, help and logs use Perdure's own words: the seed systems' words for statuses are accepted
as filters, and appear nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.core.run.lifecycle import Status
from perdure.core.seed_terms import ALIASES, resolve_status
from perdure.errors import InvalidInput

SOURCE = Path(__file__).resolve().parents[1] / "src" / "perdure"

OTHER_MEANING = {"timeout", "rejected"}
"""Words that are also kinds of failure of Perdure."""

OF_SEEDS = {SOURCE / "core" / "seed_terms.py", SOURCE / "engine" / "manifests" / "wakeplane.py"}
"""Modules about the seed systems themselves."""

_ALIAS = re.compile(rf"\b({'|'.join(sorted(ALIASES.keys() - OTHER_MEANING))})\b")


def find_sentences(tree: ast.Module, with_docstrings: bool) -> Iterator[str]:
    """Yield the texts of a module that have several words. One word alone is data."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_told = with_docstrings or id(node) not in docstrings
            if is_told and " " in node.value:
                yield node.value


def test_no_message_says_a_seed_systems_word() -> None:
    found = [
        f"{path.relative_to(SOURCE)}: {match[0]} in {text[:80]!r}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path not in OF_SEEDS and "testing" not in path.parts
        for text in find_sentences(ast.parse(path.read_text()), "cli" in path.parts)
        if (match := _ALIAS.search(text))
    ]

    assert found == []


@pytest.mark.parametrize("word", ["complete", "pendin", "crash", "nothing like it"])
def test_an_unknown_status_is_answered_with_our_statuses_only(word: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        resolve_status(word)

    advice = str(refused.value).partition("there are: ")[2]
    assert advice.split(", ") == list(Status)
