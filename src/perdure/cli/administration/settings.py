"""`perdure config`: what holds, and why."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from perdure.cli.output.answer import answer, explained, json_option


@click.command()
@json_option
@explained
def config(as_json: bool) -> None:
    """Print every setting, its value and who set it.

    Flags > PERDURE_* variables > [tool.perdure] in pyproject.toml > defaults.
    """
    from perdure.app.configuration import configured

    settings = configured().settings
    longest = max(len(setting.name) for setting in settings)
    widest = max(len(str(_shown(setting.value))) for setting in settings)
    rows = [f"{s.name:<{longest}} {_shown(s.value)!s:<{widest}}  {s.source}" for s in settings]
    data = {s.name: {"value": _shown(s.value), "source": s.source} for s in settings}
    answer(as_json, data, "\n".join(rows))


def _shown(value: Any) -> Any:
    """Durations as seconds, passwords not at all."""
    from perdure.storage import shown_url

    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str) and "@" in value:
        return shown_url(value)
    return value
