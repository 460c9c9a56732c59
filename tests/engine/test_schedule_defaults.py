"""What holds for a schedule that does not say otherwise is one of the defaults."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from fix_app import QUICK
from perdure import App, Defaults, Manifest, cron
from perdure.core.schedule import Definition
from perdure.engine.manifests.render import to_yaml
from perdure.engine.runtime.defaults import DEFAULTS
from perdure.errors import InvalidInput

DAILY = cron("@daily")
OWN = replace(QUICK, misfire="skip", misfire_grace=5, overlap="allow", max_concurrency=3)


@pytest.fixture
def app(storage_url: str) -> App:
    app = App(storage_url, defaults=OWN)

    @app.schedule(DAILY)
    @app.task
    def digest() -> None: ...

    return app


def test_without_any_word_a_schedule_is_as_the_table_says() -> None:
    usual = {field.name: field.default for field in msgspec.structs.fields(Definition)}

    assert DEFAULTS.of_schedules == {name: usual[name] for name in DEFAULTS.of_schedules}


async def test_a_schedule_that_says_nothing_takes_what_is_configured(app: App) -> None:
    async with app:
        stated = await app.schedules.get("digest")
        made = await app.schedules.create("other", DAILY, "digest", overlap="skip")

    assert (stated.definition.misfire, stated.definition.slots) == ("skip", 3)
    assert (made.definition.overlap, made.definition.max_concurrency) == ("skip", 3)
    assert made.definition.misfire_grace.total_seconds() == 5


async def test_a_schedule_said_anew_takes_what_is_configured_and_a_changed_one_does_not(
    app: App,
) -> None:
    async with app:
        await app.schedules.create("other", DAILY, "digest", misfire="catch_up", overlap="forbid")
        changed = await app.schedules.update("other", overlap="replace")
        anew = await app.schedules.replace("other", DAILY, "digest")

    assert (changed.definition.misfire, changed.definition.overlap) == ("catch_up", "replace")
    assert (anew.definition.misfire, anew.definition.overlap) == ("skip", "allow")


async def test_a_manifest_leaves_out_what_is_configured_and_says_what_is_not(app: App) -> None:
    async with app:
        await app.schedules.create("other", DAILY, "digest", misfire="run_once")
        said = await app.manifests.export()
        again = await app.manifests.apply(Manifest.parse(to_yaml(said)))

    usual = {"cron": "@daily", "task": "digest"}
    assert said["schedules"] == [
        {"name": "digest"} | usual,
        {"name": "other"} | usual | {"misfire": "run_once"},
    ]
    assert not again.differs


@pytest.mark.parametrize(
    "wrong", [{"misfire": "never"}, {"overlap": ""}, {"misfire_grace": 0}, {"max_concurrency": 0}]
)
def test_what_no_schedule_could_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput) as refused:
        Defaults(**wrong)  # type: ignore[arg-type]  # on purpose

    assert [refused.value.field] == list(wrong)
