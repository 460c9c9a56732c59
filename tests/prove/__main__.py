"""`python -m prove`, which `make prove` calls."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from prove.campaign import DATABASES, Campaign, load_campaigns
from prove.commit import PROOF, NotInGit, identify_commit
from prove.runner import Request, prove

ROOT = Path(__file__).parent.parent.parent
USAGE = "make prove CAMPAIGN=name [SEED=7] [SIZE=100] [DATABASE=sqlite|postgres] [FRESH=1]"


class UnknownDatabase(Exception):
    """A campaign does not run on the given database."""


def main(arguments: list[str] | None = None) -> int:
    chosen = _parse(arguments)
    campaigns = load_campaigns()
    if not chosen.campaign:
        print(_list_campaigns(campaigns))
        return 0
    campaign = campaigns.get(chosen.campaign)
    if campaign is None:
        print(f"There is no campaign {chosen.campaign!r}.\n{_list_campaigns(campaigns)}")
        return 2
    try:
        return 0 if prove(_requests(campaign, chosen, identify_commit(ROOT))) else 1
    except (NotInGit, UnknownDatabase) as error:
        print(error)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted. The same command continues with the slice that was interrupted.")
        return 130


def _requests(campaign: Campaign, chosen: argparse.Namespace, commit: str) -> list[Request]:
    """One request for each database; one without a database if the campaign needs none."""
    known = campaign.databases
    if chosen.database and chosen.database not in known:
        raise UnknownDatabase(f"The campaign {campaign.name} does not use {chosen.database}.")
    wanted: list[str | None] = [name for name in known if chosen.database in (None, name)]
    return [
        Request(
            campaign=campaign,
            database=name,
            commit=commit,
            seed=chosen.seed,
            size=chosen.size,
            is_fresh=chosen.fresh,
            checkpoints=ROOT / ".prove",
            proof=ROOT / PROOF,
        )
        for name in wanted or [None]
    ]


def _list_campaigns(campaigns: dict[str, Campaign]) -> str:
    width = max(map(len, campaigns))
    lines = [
        f"  {it.name:<{width}}  {it.summary} ({it.size} {it.unit}"
        f"{' on ' + ' and '.join(it.databases) if it.databases else ''})"
        for it in campaigns.values()
    ]
    return "\n".join([USAGE, "", *lines])


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m prove", description=USAGE)
    parser.add_argument("campaign", nargs="?", help="without one, the campaigns are listed")
    parser.add_argument("--seed", type=int, help="a random one by default; it is printed")
    parser.add_argument("--size", type=_positive, help="units of work, instead of the usual number")
    parser.add_argument(
        "--database", choices=DATABASES, help="only one of the campaign's databases"
    )
    parser.add_argument("--fresh", action="store_true", help="do not continue, begin again")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
