"""`app.webhooks`: what operators do about webhooks."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from perdure.core.filter_terms import parse_instant
from perdure.core.json_text import check_label
from perdure.core.webhook import EVERYTHING, Interest, Progress, check_interest, moved, well
from perdure.engine.operators.audit_log import recorded
from perdure.engine.operators.filters import When, page_limit
from perdure.engine.runtime import wakeups as hints
from perdure.engine.runtime.input import OPERATOR, By, actor_of, flag
from perdure.engine.runtime.keywords import explain_methods
from perdure.engine.runtime.runtime import Runtime
from perdure.engine.runtime.secret import Secret
from perdure.engine.runtime.write import MOST_CONFLICTS
from perdure.engine.tasks.target import HttpTarget, Text
from perdure.engine.webhooks.message import trial
from perdure.engine.webhooks.webhook import (
    Delivery,
    Hook,
    QuarantinedHook,
    Webhook,
    delivery_of,
    put_hook,
    quarantined_view,
    read_hooks,
    view_of,
)
from perdure.errors import InvalidInput, StorageUnavailable, WebhookNotFound

MOST_WEBHOOKS = 100
"""In one environment. Each reads the feed, and has sockets of its own."""
MOST_SECRETS = 4
LONGEST_NAME = 100
MAX_HEADER_CHARS = 16 * 1024
"""In the names and texts of all headers of a webhook."""
MARGIN = timedelta(hours=1)
"""So long a transaction may have taken whose changes a replay from an instant must find."""
NEEDS_H11 = "sending webhooks needs h11: pip install 'perdure[http]'"

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)

Signing = Secret | Sequence[Secret]
Tag = tuple[str, str]


@explain_methods
class Webhooks:
    """Those of the app's environment, by name. `by` names the operator; the audit log keeps it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def create(
        self,
        name: str,
        url: str,
        *,
        signing_secret: Signing,
        events: Sequence[str] = (EVERYTHING,),
        task: str | None = None,
        queue: str | None = None,
        tag: Tag | None = None,
        status: str | None = None,
        headers: Mapping[str, Text] | None = None,
        with_payload: bool = False,
        since: When | None = None,
        by: By = OPERATOR,
    ) -> Webhook:
        """From now on, or from `since` on, post each of these events to `url`, signed with each
        of the secrets. Raises InvalidInput, also if there is one of that name."""
        wanted = {"events": events, "task": task, "queue": queue, "tag": tag, "status": status}
        target = {"url": url, "headers": headers or {}, "signing_secret": signing_secret}
        hook = Hook(
            id=f"hook_{self._runtime.ids.token()}",
            environment=self._runtime.environment,
            name=check_label(name, "name", limit=LONGEST_NAME),
            target=_target(target),
            interest=_interest(wanted),
            with_payload=flag(with_payload, "with_payload"),
            created_at=self._runtime.now(),
            created_by=actor_of(by),
            progress=await self._beginning(since),
        )
        if sum(map(len, await self._read())) >= MOST_WEBHOOKS:
            raise InvalidInput("name", f"there are {MOST_WEBHOOKS} webhooks already; delete some")
        stored = await put_hook(self._runtime.storage, hook)
        if stored is None:
            raise InvalidInput("name", f"there is a webhook {name!r} already; use another name")
        return self._changed(stored)

    async def list(self) -> Sequence[Webhook]:
        """By name. One that cannot be read is listed as `quarantined`."""
        hooks, quarantined = await self._read()
        views = [*map(self._view, hooks), *map(self._quarantined_view, quarantined)]
        return sorted(views, key=lambda view: view.name)

    async def get(self, name: str) -> Webhook:
        """Raises WebhookNotFound."""
        hooks, quarantined = await self._read()
        for unreadable in quarantined:
            if unreadable.name == name:
                return self._quarantined_view(unreadable)
        return self._view(_named(name, hooks, quarantined))

    async def update(
        self,
        name: str,
        *,
        url: str | UnsetType = UNSET,
        signing_secret: Signing | UnsetType = UNSET,
        events: Sequence[str] | UnsetType = UNSET,
        task: str | UnsetType | None = UNSET,
        queue: str | UnsetType | None = UNSET,
        tag: Tag | UnsetType | None = UNSET,
        status: str | UnsetType | None = UNSET,
        headers: Mapping[str, Text] | UnsetType = UNSET,
        with_payload: bool | UnsetType = UNSET,
        by: By | UnsetType = OPERATOR,
    ) -> Webhook:
        """Change what is given; its place stays. To rotate a secret, give the new one and the old
        one, and later the new one alone: receivers may know either."""
        wanted = _given(events=events, task=task, queue=queue, tag=tag, status=status)
        target = _given(url=url, headers=headers, signing_secret=signing_secret)
        payload = _given(with_payload=with_payload)

        def updated(hook: Hook) -> Hook:
            return replace(
                hook,
                target=_target(_target_fields(hook.target) | target),
                interest=_interest(_interest_fields(hook.interest) | wanted),
                with_payload=flag(payload.get("with_payload", hook.with_payload), "with_payload"),
            )

        fields = sorted(wanted | target | payload)
        async with recorded(self._runtime, by, "change_webhook", name, fields=fields):
            return await self._change(name, updated)

    async def pause(self, name: str, *, by: By | UnsetType = OPERATOR) -> Webhook:
        """Send nothing until it is resumed. Its place is kept, as long as runs are."""
        async with recorded(self._runtime, by, "pause_webhook", name):
            return await self._change(name, lambda hook: replace(hook, enabled=False))

    async def resume(self, name: str, *, by: By | UnsetType = OPERATOR) -> Webhook:
        """Go on where it stopped, at once; also after it was disabled."""
        async with recorded(self._runtime, by, "resume_webhook", name):
            return await self._change(
                name, lambda hook: replace(hook, enabled=True, progress=_afresh(hook.progress))
            )

    async def replay(
        self,
        name: str,
        *,
        since: When | None = None,
        after: str | None = None,
        by: By | UnsetType = OPERATOR,
    ) -> Webhook:
        """Tell everything again from an instant on, or after a cursor; one that lies ahead passes
        by what is between. The messages have the ids they had."""
        if (since is None) == (after is None):
            raise InvalidInput("since", "give either since or after, a cursor")
        async with recorded(self._runtime, by, "replay_webhook", name):
            await self._find(name)
            place = await self._place(since, after)
            return await self._change(
                name,
                lambda hook: replace(hook, enabled=True, progress=moved(hook.progress, *place)),
            )

    async def delete(self, name: str, *, by: By | UnsetType = OPERATOR) -> None:
        """Delete it and its deliveries, also if it cannot be read."""
        async with recorded(self._runtime, by, "delete_webhook", name):
            await self._delete(name)

    async def _delete(self, name: str) -> None:
        hooks, quarantined = await self._read()
        ids = {hook.name: hook.id for hook in hooks} | {it.name: it.id for it in quarantined}
        if name not in ids:
            raise WebhookNotFound(name)
        await self._runtime.storage.delete_webhook(ids[name])
        self._runtime.hints.publish([hints.webhooks(self._runtime.environment)])

    async def deliveries(
        self, name: str, *, limit: int = 50, before: int | None = None
    ) -> Sequence[Delivery]:
        """The latest posts, newest first; `before` a number."""
        hook = await self._find(name)
        found = await self._runtime.storage.deliveries(
            hook.id, limit=page_limit(limit), before=before
        )
        return [delivery_of(delivery) for delivery in found]

    async def test(self, name: str, *, by: By | UnsetType = OPERATOR) -> Delivery:
        """Post an event `webhook.test` from this process, now, and tell what came of it. It needs
        the secrets here."""
        async with recorded(self._runtime, by, "test_webhook", name):
            return await self._test(name)

    async def _test(self, name: str) -> Delivery:
        hook = await self._find(name)
        if importlib.util.find_spec("h11") is None:
            raise InvalidInput("webhook", NEEDS_H11)
        from perdure.engine.webhooks.post import Poster

        message = trial(self._runtime.now(), self._runtime.ids.token())
        return (await Poster(self._runtime).post(hook, message)).delivery

    async def _beginning(self, since: When | None) -> Progress:
        if since is None:
            return Progress(cursor=await self._runtime.storage.latest_change())
        cursor, not_before = await self._place(since, None)
        return Progress(cursor=cursor, not_before=not_before)

    async def _place(self, since: When | None, after: str | None) -> tuple[str, datetime | None]:
        storage = self._runtime.storage
        if after is not None:
            await storage.changes(after, limit=1)  # raises InvalidInput if it is no cursor
            return after, None
        assert since is not None
        now = self._runtime.now()
        instant = parse_instant(since, "since", now)
        if instant > now:
            raise InvalidInput("since", f"must not lie ahead, but is {instant}")
        instant = max(instant, LONG_AGO)
        return await storage.cursor_before(instant - MARGIN), instant

    async def _read(self) -> tuple[Sequence[Hook], Sequence[QuarantinedHook]]:
        return await read_hooks(self._runtime.storage, self._runtime.environment)

    async def _find(self, name: str) -> Hook:
        return _named(name, *await self._read())

    async def _change(self, name: str, change: Callable[[Hook], Hook]) -> Webhook:
        for _ in range(MOST_CONFLICTS):
            stored = await put_hook(self._runtime.storage, change(await self._find(name)))
            if stored is not None:
                return self._changed(stored)
        raise StorageUnavailable(f"webhook {name} is being changed by many at once; try again")

    def _changed(self, hook: Hook) -> Webhook:
        self._runtime.hints.publish([hints.webhooks(hook.environment)])
        return self._view(hook)

    def _view(self, hook: Hook) -> Webhook:
        return view_of(hook, self._runtime.redactor)

    def _quarantined_view(self, hook: QuarantinedHook) -> Webhook:
        return quarantined_view(hook, self._runtime.redactor)


def _named(name: str, hooks: Sequence[Hook], quarantined: Sequence[QuarantinedHook]) -> Hook:
    """Raises WebhookNotFound, and InvalidInput for one that cannot be read."""
    for hook in hooks:
        if hook.name == name:
            return hook
    for unreadable in quarantined:
        if unreadable.name == name:
            raise unreadable.error
    raise WebhookNotFound(name)


def _afresh(progress: Progress) -> Progress:
    """The operator knows of it."""
    return replace(well(progress), gap=None)


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not UNSET}


def _target_fields(target: HttpTarget) -> dict[str, Any]:
    return {
        "url": target.url,
        "headers": target.headers,
        "signing_secret": target.signing_secrets,
    }


def _target(fields: Mapping[str, Any]) -> HttpTarget:
    """Raises InvalidInput."""
    given = fields["signing_secret"]
    secrets = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not 1 <= len(secrets) <= MOST_SECRETS:
        problem = f"must be 1 to {MOST_SECRETS} secrets, e.g. secret('WEBHOOK_BILLING')"
        raise InvalidInput("signing_secret", problem)
    headers = fields["headers"]
    if not isinstance(headers, Mapping):
        raise InvalidInput("headers", f"must be a dict, not {headers!r:.80}")
    target = HttpTarget(url=fields["url"], headers=dict(headers), signing_secrets=secrets)
    _check_header_size(target.headers)
    return target


def _check_header_size(headers: Mapping[str, Text]) -> None:
    texts = [it if isinstance(it, str) else it.name + it.prefix for it in headers.values()]
    size = sum(map(len, (*headers, *texts)))
    if size > MAX_HEADER_CHARS:
        problem = f"must have at most {MAX_HEADER_CHARS} characters in all, not {size}"
        raise InvalidInput("headers", problem)


def _interest_fields(interest: Interest) -> dict[str, Any]:
    return {name: getattr(interest, name) for name in Interest.__struct_fields__}


def _interest(fields: Mapping[str, Any]) -> Interest:
    """Raises InvalidInput."""
    events = fields["events"]
    if isinstance(events, str) or not isinstance(events, Sequence):
        problem = f"must be a list, e.g. ['run.failed'], not {events!r:.80}"
        raise InvalidInput("events", problem)
    return check_interest(Interest(**{**fields, "events": tuple(events)}))
