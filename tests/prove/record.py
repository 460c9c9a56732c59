"""docs/proof.md: one line for each campaign that ended."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from prove.campaign import Campaign
from prove.checkpoint import Checkpoint

HEADER = """\
# Results of the long campaigns

`make prove CAMPAIGN=…` appends a line here when a campaign ends, also when it fails. A commit with
`+…` had changes that were not committed. `make prove` lists the campaigns;
[How we know that it holds](reliability.md) describes them.

| ended (UTC) | campaign | database | commit | seed | size | counts | duration | result |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


def append_result(
    path: Path, campaign: Campaign, database: str | None, state: Checkpoint, result: str
) -> None:
    """Append one line, below the header if the file is new."""
    cells = [
        datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        campaign.name,
        database or "none",
        f"`{state.commit}`",
        str(state.seed),
        f"{state.size} {campaign.unit}",
        format_counts(state.outcome.counts),
        f"{state.seconds:.0f} s",
        " ".join(result.replace("|", "\\|").split()),
    ]
    if not path.exists():
        path.write_text(HEADER)
    with path.open("a") as file:
        file.write(f"| {' | '.join(cells)} |\n")


def format_counts(counts: dict[str, float]) -> str:
    return " ".join(f"{name}={_format_number(count)}" for name, count in counts.items()) or "none"


def _format_number(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:.2f}"
