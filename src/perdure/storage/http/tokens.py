"""The tokens of this worker's leases. A server shows a worker no tokens but masked ones, of which
only its own mean anything to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from perdure.core.run import Run
from perdure.storage.wire import mask

MOST = 50_000
"""Older ones are forgotten; a lease that is renewed keeps its token young."""


class Tokens:
    """Known by their masks."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def learn(self, tokens: Iterable[str]) -> None:
        for token in tokens:
            masked = mask(token)
            self._known.pop(masked, None)
            self._known[masked] = token
        while len(self._known) > MOST:
            del self._known[next(iter(self._known))]

    def unmask(self, answer: Any) -> Any:
        """The same, with our own tokens in it."""
        if isinstance(answer, Run):
            return self._unmasked(answer)
        if isinstance(answer, list):
            return [self.unmask(each) for each in answer]
        return {key: self.unmask(each) for key, each in answer.items()}

    def _unmasked(self, run: Run) -> Run:
        lease = run.lease
        if lease is None or lease.token not in self._known:
            return run
        return replace(run, lease=replace(lease, token=self._known[lease.token]))
