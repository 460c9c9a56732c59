"""The part of an app that defines tasks without a function: requests and commands.

Imports little: whoever defines none of them must not wait for what they need.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

from perdure.engine.door import only_known
from perdure.engine.options import TargetKeywords
from perdure.engine.task import Task

if TYPE_CHECKING:
    from perdure.engine.app import App
    from perdure.engine.executors.secret import Secret
    from perdure.engine.executors.target import Stdout, Text


class TargetTasks(ABC):
    """`app.http_task` and `app.shell_task`."""

    @abstractmethod
    def _add(self, task: Task[..., Any]) -> Task[..., Any]:
        """Make it one of the app's. Raises InvalidTask if its name is taken."""

    def http_task(
        self,
        name: str,
        *,
        url: str,
        method: str = "POST",
        headers: Mapping[str, Text] | None = None,
        signing_secret: Secret | Sequence[Secret] | None = None,
        response_limit: int | None = None,
        **settings: Unpack[TargetKeywords],
    ) -> Task[..., Any]:
        """A task that is a request: its payload is posted to `url`, the answer is its result.
        `settings` are those of `task`; `timeout` is 300 s unless it says otherwise."""
        from perdure.engine.executors.target_task import http_target, target_task

        only_known(settings, TargetKeywords.__annotations__, "setting of an http task")
        target = http_target(url, method, headers, signing_secret, response_limit)
        return self._add(target_task(cast("App", self), name, target, settings))

    def shell_task(
        self,
        name: str,
        *,
        argv: Sequence[str],
        env: Mapping[str, Text] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        permanent: Sequence[int] = (),
        stdout: Stdout | str = "text",
        output_limit: int | None = None,
        **settings: Unpack[TargetKeywords],
    ) -> Task[..., Any]:
        """A task that is a command: it reads its payload from standard input, and what it writes
        to standard output is its result. `settings` as for `http_task`."""
        from perdure.engine.executors.target_task import shell_target, target_task

        only_known(settings, TargetKeywords.__annotations__, "setting of a shell task")
        target = shell_target(argv, env, cwd, permanent, stdout, output_limit)
        return self._add(target_task(cast("App", self), name, target, settings))
