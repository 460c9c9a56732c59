"""A manifest: what files state, all of it checked as far as that goes without a database."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from perdure.engine.manifests.parse import (
    StatedSchedule,
    StatedTask,
    Where,
    parts_of,
    read_schedule,
    read_task,
)
from perdure.engine.manifests.problems import Noted, flat
from perdure.engine.manifests.wakeplane import NAMES, is_wakeplane, read_wakeplane
from perdure.engine.manifests.yaml_lines import Document, Unreadable, read_documents
from perdure.errors import InvalidInput, InvalidManifest

ENDINGS = (".yaml", ".yml", ".json")


class Manifest(msgspec.Struct, frozen=True):
    """Schedules and targets, as files state them. `Manifest.load("schedules.yaml")`, or a
    directory, or several; `Manifest.parse(text)`. Both raise InvalidManifest."""

    schedules: tuple[StatedSchedule, ...] = ()
    tasks: tuple[StatedTask, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    """The files' names and what stands in them, for a server that has to read them itself."""

    @property
    def notes(self) -> Iterator[str]:
        """What one should know, although it is no problem."""
        for schedule in self.schedules:
            yield from schedule.notes

    @classmethod
    def parse(cls, text: str, file: str = "manifest") -> Manifest:
        """`file` is what problems call it."""
        return gathered([(file, text)])

    @classmethod
    def load(cls, *paths: str | os.PathLike[str]) -> Manifest:
        """Each a file, or a directory of files that end in .yaml, .yml or .json."""
        return gathered(texts_of(paths))


class _Reading:
    """What was found so far: stated, or wrong."""

    def __init__(self, max_items: int | None) -> None:
        self.stated: list[StatedSchedule | StatedTask] = []
        self.problems: list[str] = []
        self._max_items = max_items
        self._items = 0

    def file(self, file: str, text: str) -> None:
        try:
            for document in read_documents(text, file):
                self._document(document)
        except Unreadable as error:
            self.problems.append(f"{file}, line {error.line}: {error.problem}")

    def _document(self, document: Document) -> None:
        noted = Noted()
        found = [it for part in parts_of(document, noted) for it in self._part(*part)]
        found += [(Where(document), error) for error in noted.errors]
        told = sorted(found, key=lambda it: it[0].line_of(it[1]))
        self.problems += [where.problem(error) for where, error in told]

    def _part(self, kind: str, value: Any, where: Where) -> list[tuple[Where, InvalidInput]]:
        """What is wrong with it, and where. Raises InvalidManifest if it is one too many."""
        self._items += 1
        if self._max_items is not None and self._items > self._max_items:
            problem = f"there are more than {self._max_items} schedules and tasks in one request"
            raise InvalidManifest([f"{where}: {problem}; divide the manifest, and apply each part"])
        try:
            self.stated.append(_read(kind, value, where))
        except InvalidInput as error:
            named = where._replace(names=NAMES if is_wakeplane(value) else {})
            return [(named, one) for one in flat(error)]
        return []


def gathered(
    texts: Iterable[tuple[str, str | InvalidManifest]], max_items: int | None = None
) -> Manifest:
    """What these state; each is a file's name and its text, or why it has none. Raises
    InvalidManifest, also for more than `max_items` schedules and tasks."""
    reading, files = _Reading(max_items), list[tuple[str, str]]()
    for file, text in texts:
        if isinstance(text, InvalidManifest):
            reading.problems += text.problems
        else:
            files.append((file, text))
            reading.file(file, text)
    schedules = [one for one in reading.stated if isinstance(one, StatedSchedule)]
    named = [one for one in reading.stated if isinstance(one, StatedTask)]
    tasks = [*named, *(one.own for one in schedules if one.own is not None)]
    problems = [*reading.problems, *_twins("schedule", schedules), *_twins("task", tasks)]
    if not (reading.stated or problems):
        problems = [f"{', '.join(file for file, _ in files)}: there is no schedule in it"]
    if problems:
        raise InvalidManifest(problems)
    return Manifest(tuple(schedules), tuple(tasks), tuple(files))


def _twins(what: str, stated: Iterable[StatedSchedule | StatedTask]) -> Iterator[str]:
    seen: dict[str, Where] = {}
    for one in stated:
        first = seen.setdefault(one.name, one.where)
        if first is not one.where:
            before = f"there is a {what} {one.name!r} already, in {first}, line {first.line}"
            yield one.where.problem(InvalidInput("name", f"{before}; give each its own name"))


def _read(kind: str, value: Any, where: Where) -> StatedSchedule | StatedTask:
    if kind == "task":
        return read_task(value, where)
    return read_wakeplane(value, where) if is_wakeplane(value) else read_schedule(value, where)


def texts_of(
    paths: Iterable[str | os.PathLike[str]],
) -> Iterator[tuple[str, str | InvalidManifest]]:
    """Each file's name and text, or why it cannot be read."""
    for path in paths:
        for file in _files(Path(path)):
            yield str(file), _text_of(file)


def _text_of(file: Path) -> str | InvalidManifest:
    if file.is_dir():
        problem = f"has no file that ends in {', '.join(ENDINGS)}"
        return InvalidManifest([f"{file}: {problem}"])
    try:
        return file.read_text("utf-8")
    except OSError as error:
        return InvalidManifest([f"{file}: cannot be read: {error.strerror}"])
    except UnicodeDecodeError as error:
        return InvalidManifest([f"{file}: is not UTF-8: {error.reason}"])


def _files(path: Path) -> list[Path]:
    """The files of a directory; if there are none, itself."""
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix in ENDINGS and file.is_file())
    return found or [path]
