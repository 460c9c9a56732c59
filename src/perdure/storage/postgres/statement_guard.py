"""What a handler's statements begin with, to refuse those that would end its transaction.

A COMMIT that has reached the server cannot be undone, so it must not get there. Only as much of SQL
is known here as is needed to find where a statement begins: white space, comments, what is quoted,
and bodies of functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from perdure.errors import TransactionError

LEAVE_IT = "leave the transaction to Perdure: it is committed together with the run's success"

_TOKEN = re.compile(
    r"""
      (?P<comment> --[^\n]* )
    | (?P<nested> /\* )
    | (?P<escaped> \b[eE]'(?:[^'\\]|\\.|'')*' )
    | (?P<quoted> '(?:[^']|'')*' | "(?:[^"]|"")*" )
    | (?P<body> (?<![\w$])\$(?P<tag>[^\W\d]\w*)?\$ )
    | (?P<end> ; )
    | (?P<word> [^\W\d]\w* )
    | (?P<other> \S )
    """,
    re.VERBOSE | re.DOTALL,
)


def refuse_ending(text: str) -> None:
    """Raises TransactionError if one of the statements begins or ends a transaction."""
    word = _ending_word(text)
    if word is not None:
        raise TransactionError(f"{word.upper()}: {LEAVE_IT}; savepoints are yours")


@lru_cache(maxsize=512)
def _ending_word(text: str) -> str | None:
    return next((words[0] for words in _statements(text) if _ends(*words)), None)


def _ends(first: str, *rest: str) -> bool:
    if first == "rollback":
        return "to" not in rest  # a savepoint's
    if first in ("prepare", "start"):
        return rest[:1] == ("transaction",)
    return first in ("abort", "begin", "commit", "end")


def _statements(text: str) -> Iterator[list[str]]:
    """Of each statement its first words; but for the end of a function's body."""
    words: list[str] = []
    is_body = False
    for kind, token in _tokens(text):
        if kind == "end":
            if words and not (is_body and words[0] == "end"):
                yield words[:4]
            is_body = (is_body and words[:1] != ["end"]) or _has_body(words)
            words = []
        else:
            words.append(token)
    if words and not (is_body and words[0] == "end"):
        yield words[:4]


def _has_body(words: list[str]) -> bool:
    """Whether a body in SQL begins in this statement, `BEGIN ATOMIC …; …; END`."""
    return words[:1] == ["create"] and ("begin", "atomic") in pairwise(words)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Ends of statements, and the words and signs between them."""
    position = 0
    while found := _TOKEN.search(text, position):
        position = found.end()
        kind = found.lastgroup or ""
        if kind == "nested":
            position = _after_comment(text, position)
        elif found["body"] is not None:
            closing = text.find(found["body"], position)
            position = len(text) if closing < 0 else closing + len(found["body"])
            yield "other", "$"
        elif kind != "comment":
            yield kind, found.group().lower()


def _after_comment(text: str, position: int) -> int:
    """PostgreSQL's comments nest."""
    depth = 1
    while depth and (found := re.compile(r"/\*|\*/").search(text, position)):
        depth += 1 if found.group() == "/*" else -1
        position = found.end()
    return len(text) if depth else position
