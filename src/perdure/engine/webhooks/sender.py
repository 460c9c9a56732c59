"""Tells webhooks what has happened, from the change feed. Any number may run, anywhere.

For each webhook: read on from its cursor; where something concerns it, take hold of it, post, and
move the cursor, each by compare-and-set. Who dies in between leaves the cursor where it was: its
posts are made again. A hold only keeps others from doing the same work; it decides nothing.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections import Counter as Tally
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from perdure.core.run.backoff import Backoff
from perdure.core.webhook import (
    Endurance,
    Progress,
    Stretch,
    Trouble,
    WebhookState,
    failed,
    missed,
    taken,
    told,
    well,
)
from perdure.engine.observability.record_redaction import Showing
from perdure.engine.runtime.runtime import RuntimeProvider
from perdure.engine.runtime.service import AppService
from perdure.engine.runtime.wakeups import Topics
from perdure.engine.webhooks.message import Message, messages_for
from perdure.engine.webhooks.webhook import Delivery, Hook, QuarantinedHook, put_hook, read_hooks
from perdure.errors import InvalidInput, StorageError
from perdure.storage.contract.inspection import feed_order
from perdure.storage.contract.runs import Change
from perdure.telemetry import metrics, table
from perdure.telemetry.registry import Gauges

if TYPE_CHECKING:
    from perdure.engine.webhooks.post import Poster
    from perdure.engine.webhooks.post_batch import Round

PAGE = 100
"""Changes read at once."""
SAVE_EVERY = timedelta(seconds=10)
"""So often a place in the feed is stored while nothing there concerns the webhook."""
SHORTEST_ROUND = timedelta(milliseconds=100)
"""Between looks, however many hints come."""
NEEDS_H11 = "it needs h11: pip install 'perdure[http]'"


class Passed(msgspec.Struct, frozen=True):
    """How far a webhook has looked since it was stored as this version, at `since`."""

    version: int
    cursor: str
    since: float


class WebhookSender(AppService):
    """For one environment, or for all of the database: `environment=None`."""

    def __init__(self, provider: RuntimeProvider, environment: str | None) -> None:
        defaults = provider.components.defaults
        super().__init__(provider, defaults.poll)
        self._environment = environment
        self._busy: dict[str, asyncio.Task[bool]] = {}
        self._rounds: set[Round] = set()
        self._passed: dict[str, Passed] = {}
        self._pages: dict[str, asyncio.Task[list[Change]]] = {}
        self._states: Tally[WebhookState] = Tally()
        self._news = asyncio.Event()
        self._is_over = False
        self._cannot: str | None = None
        self._ends: list[Callable[[], None]] = []
        self._endurance = Endurance(
            backoff=Backoff(
                initial=defaults.backoff_initial,
                factor=defaults.backoff_factor,
                maximum=defaults.backoff_maximum,
                spread=defaults.backoff_jitter,
            ),
            failures=defaults.webhook_failures,
            time=defaults.webhook_patience,
        )

    # Running

    def start(self) -> None:
        runtime, registry = self._runtime, self._runtime.registry
        self._ends = [runtime.hub.listen(self._hear), registry.watch(self.gauges)]
        super().start()

    async def stop(self) -> None:
        """What has been posted is written down first; that takes no longer than a post may."""
        self._is_over = True
        for end in self._ends:
            end()
        await super().stop()
        for posting in self._rounds:
            posting.end()
        await asyncio.gather(*self._busy.values())

    async def run_once(self) -> None:
        """Begin with all that are due. Called by hand, it waits until they are through; as a
        service it does not, so that nobody waits for anybody's endpoint."""
        hooks, quarantined = await read_hooks(self._runtime.storage, self._environment)
        self._log_quarantined(quarantined)
        states = [hook.state for hook in hooks]
        self._states = Tally(states + [WebhookState.QUARANTINED] * len(quarantined))
        self._passed = {h.id: self._passed[h.id] for h in hooks if h.id in self._passed}
        self._pages.clear()
        now = self._runtime.now()
        due = [hook for hook in hooks if hook.is_due(now) and hook.id not in self._busy]
        if due and self._can_post():
            for hook in due:
                self._begin(hook)
        while self._busy and self._task is None:
            await asyncio.wait(self._busy.values())

    async def rest(self) -> None:
        await self._clock.sleep(SHORTEST_ROUND)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._interval.total_seconds()):
                await self._news.wait()
        self._news.clear()

    def gauges(self) -> Gauges:
        return {
            metrics.WEBHOOKS: {(state.value,): float(self._states[state]) for state in WebhookState}
        }

    def _hear(self, topics: Topics | None) -> None:
        """Where there are no webhooks only news of some are news."""
        if topics is None or self._states or any(it.startswith("webhooks:") for it in topics):
            self._news.set()

    def _can_post(self) -> bool:
        if self._cannot is None:
            self._cannot = "" if importlib.util.find_spec("h11") else NEEDS_H11
            if self._cannot:
                table.WEBHOOKS_NOT_SENT.say(why=self._cannot)
        return not self._cannot

    def _begin(self, hook: Hook) -> None:
        task = asyncio.create_task(self._outages.went_well(self._isolate(hook)))
        self._busy[hook.id] = task
        task.add_done_callback(lambda _: self._busy.pop(hook.id, None))

    def _log_quarantined(self, quarantined: Sequence[QuarantinedHook]) -> None:
        showing = Showing(self._runtime.redactor)
        for hook in quarantined:
            _log_skipped(hook, str(showing.text(hook.why)))

    # One webhook

    async def _isolate(self, hook: Hook) -> None:
        """Serve the webhook. One that raises is recorded as failing, so that it is tried again
        later, and logged at most once an hour."""
        try:
            await self._serve(hook)
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001  # the other webhooks continue
            _log_skipped(hook, f"{type(error).__name__}: {error}")
            await self._record_error(hook, error)

    async def _record_error(self, served: Hook, error: Exception) -> None:
        """Store when to try again, unless another writer changed the webhook or storage refuses
        what it holds."""
        hook, now = await self._reread(served), self._runtime.now()
        if hook is None or not hook.is_due(now):
            return
        trouble = Trouble(why=f"{type(error).__name__} in the sender; its log tells more")
        progress = failed(hook.progress, trouble, self._endurance, now, self._clock.jitter())
        with suppress(InvalidInput):
            await self._put(hook, progress)

    async def _serve(self, hook: Hook | None) -> None:
        """Until it has caught up, or cannot go on."""
        while hook is not None and hook.enabled and not self._is_over:
            position = self._position(hook)
            changes = await self._page(position)
            messages = await messages_for(hook, changes, self._runtime.storage)
            # In this order: what was pruned before all of it was read shows.
            hook = await self._look_back(hook, position, await self._runtime.storage.pruned_to())
            if hook is not None and changes:
                hook = await self._go_on(hook, changes, messages)
                if hook is None or self._position(hook) != changes[-1].cursor:
                    continue
            if len(changes) < PAGE:
                return await self._keep_place(hook)

    async def _go_on(
        self, hook: Hook, changes: Sequence[Change], messages: Sequence[Message]
    ) -> Hook | None:
        if any(message.id not in hook.progress.done for message in messages):
            return await self._tell(hook, changes, messages)
        return await self._pass_by(hook, changes[-1].cursor)

    def _position(self, hook: Hook) -> str:
        passed = self._passed.get(hook.id)
        is_current = passed is not None and passed.version == hook.version
        return passed.cursor if passed and is_current else hook.progress.cursor

    async def _page(self, cursor: str) -> list[Change]:
        """Whoever stands at the same place reads the same page."""
        if cursor not in self._pages:
            reading = self._runtime.storage.changes(cursor, limit=PAGE)
            self._pages[cursor] = asyncio.ensure_future(reading)
        return await asyncio.shield(self._pages[cursor])

    async def _look_back(self, hook: Hook, position: str, pruned: str | None) -> Hook | None:
        """Whether what it had still to look at was all there. If not it goes on, and says so."""
        gap = hook.progress.gap
        if pruned is None or feed_order(pruned) <= feed_order(position):
            return hook
        if gap is not None and gap.until == pruned:
            return hook
        progress = missed(hook.progress, position, pruned, self._runtime.now())
        if gap is None:
            table.WEBHOOK_GAP.say(
                webhook=hook.name, environment=hook.environment, after=position, until=pruned
            )
        return await self._put(hook, progress)

    async def _pass_by(self, hook: Hook, cursor: str) -> Hook | None:
        """Nothing there concerned it. That is stored from time to time only."""
        now = self._clock.elapsed()
        passed = self._passed.get(hook.id)
        since = passed.since if passed and passed.version == hook.version else now
        if now - since < SAVE_EVERY.total_seconds():
            self._passed[hook.id] = Passed(hook.version, cursor, since)
            return hook
        return await self._put(hook, replace(hook.progress, cursor=cursor, done=()))

    async def _keep_place(self, hook: Hook | None) -> None:
        """Also while nothing happens at all: else it would look as if nobody had looked."""
        if hook is not None and self._position(hook) != hook.progress.cursor:
            await self._pass_by(hook, self._position(hook))

    async def _tell(
        self, hook: Hook, changes: Sequence[Change], messages: Sequence[Message]
    ) -> Hook | None:
        """Post what there is to tell; the webhook if it can go on at once."""
        from perdure.engine.webhooks.post import Poster
        from perdure.engine.webhooks.post_batch import Round, stretch_of

        token, hold = self._runtime.ids.token(), self._runtime.defaults.lease_ttl
        until = self._runtime.now() + hold + self._runtime.defaults.webhook_timeout
        held = await self._put(hook, taken(hook.progress, token, until))
        if held is None:
            return None
        posting = Round(held, messages, held.progress.done)
        await self._post(posting, Poster(self._runtime), hold / 2)
        return await self._settle(held, token, stretch_of(changes, messages), posting)

    async def _post(self, posting: Round, poster: Poster, most: timedelta) -> None:
        """No post begins after `most`: the hold must not end before the last one has."""
        timer = asyncio.get_running_loop().call_later(most.total_seconds(), posting.end)
        self._rounds.add(posting)
        if self._is_over:
            posting.end()
        try:
            await posting.post(poster)
        finally:
            self._rounds.discard(posting)
            timer.cancel()

    async def _settle(
        self, held: Hook, token: str, stretch: Stretch, posting: Round
    ) -> Hook | None:
        """Write down what came of it, unless somebody has moved the webhook meanwhile."""
        decide = partial(self._decide, stretch, posting, self._runtime.now(), self._clock.jitter())
        hook: Hook | None = held
        while hook is not None and hook.progress.is_held_by(token):
            progress = decide(hook.progress)
            numbered = _numbered(posting.deliveries, hook.progress.posts)
            stored = await self._put(hook, progress, numbered)
            if stored is not None:
                _tell_log(held.progress, stored)
                return None if posting.trouble else stored
            hook = await self._reread(held)
        return None

    def _decide(
        self, stretch: Stretch, posting: Round, now: datetime, jitter: float, progress: Progress
    ) -> Progress:
        after = told(progress, stretch, posting.delivered, len(posting.deliveries), now)
        if posting.trouble is not None:
            return failed(after, posting.trouble, self._endurance, now, jitter)
        return well(after) if posting.delivered else after

    async def _put(
        self, hook: Hook, progress: Progress, posted: Sequence[Delivery] = ()
    ) -> Hook | None:
        stored = await put_hook(self._runtime.storage, replace(hook, progress=progress), posted)
        if stored is not None:
            elapsed = self._clock.elapsed()
            self._passed[hook.id] = Passed(stored.version, progress.cursor, elapsed)
        return stored

    async def _reread(self, hook: Hook) -> Hook | None:
        found, _ = await read_hooks(self._runtime.storage, hook.environment)
        return next((it for it in found if it.id == hook.id), None)


def _log_skipped(hook: Hook | QuarantinedHook, error: str) -> None:
    """Log that the webhook is skipped, at most once an hour."""
    name = f"{hook.environment}/{hook.name}"
    table.QUARANTINED.log_hourly(f"webhook {name}", kind="webhook", id=name, error=error)


def _tell_log(before: Progress, hook: Hook) -> None:
    name, environment, progress = hook.name, hook.environment, hook.progress
    if progress.disabled is not None:
        why = progress.disabled.why
        table.WEBHOOK_DISABLED.say(webhook=name, environment=environment, why=why)
    elif progress.failures:
        table.WEBHOOK_FAILING.say(
            webhook=name,
            environment=environment,
            why=progress.why,
            failures=progress.failures,
            next_try_at=str(progress.next_try_at),
        )
    elif before.failures:
        failures = before.failures
        table.WEBHOOK_WELL.say(webhook=name, environment=environment, failures=failures)


def _numbered(deliveries: Sequence[Delivery], before: int) -> list[Delivery]:
    return [replace(it, number=before + n) for n, it in enumerate(deliveries, 1)]
