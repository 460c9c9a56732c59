"""What a shell orders is in the audit log, and a shell can read it."""

from __future__ import annotations

import json
import socket

from command import Shell
from perdure import App

MANIFEST = """
schedules:
  - name: nightly
    task: double
    cron: "0 3 * * *"
    payload: {number: 1}
"""


async def _known_task(shell: Shell) -> App:
    app = App(shell.url)

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    async with app:
        return app


async def test_a_trigger_is_in_the_log_and_names_user_and_host(shell: Shell) -> None:
    app = await _known_task(shell)
    made = shell.perdure(
        "trigger", "double", "--payload", '{"number": 1}', "--by", "ann", "--json"
    ).json

    lines = shell.perdure("audit", "--entries", "--json").out.splitlines()
    [entry] = [json.loads(line) for line in lines]
    async with app:
        run = await app.runs.get(made["id"])

    assert (entry["action"], entry["target"]) == ("trigger_run", made["id"])
    assert (entry["actor"]["id"], entry["details"]["task"]) == ("ann", "double")
    assert run.created_by.id == f"ann@{socket.gethostname()}"


async def test_applied_manifests_are_in_the_log_and_dry_runs_are_not(shell: Shell) -> None:
    await _known_task(shell)
    (shell.directory / "schedules.yaml").write_text(MANIFEST)

    dry = shell.perdure("schedules", "apply", "-f", "schedules.yaml", "--dry-run")
    assert shell.perdure("audit", "--entries").out == ""
    done = shell.perdure("schedules", "apply", "-f", "schedules.yaml")
    entry = shell.perdure("audit", "--entries", "--json").json

    assert (dry.code, done.code) == (3, 0), dry.err + done.err
    assert (entry["action"], entry["target"]) == ("apply_manifest", "schedules.yaml")
    assert (entry["details"]["items"], entry["details"]["added"]) == (["nightly"], 1)


async def test_entries_are_chosen_by_action_actor_and_target(shell: Shell) -> None:
    await _known_task(shell)
    order = ("trigger", "double", "--payload", '{"number": 1}', "--json")
    first, second = (shell.perdure(*order, "--by", name).json["id"] for name in ("ann", "bob"))
    shell.perdure("runs", "cancel", first, "--by", "bob", "--reason", "not needed")

    def positions(*options: str) -> list[int]:
        found = shell.perdure("audit", "--entries", "--json", *options).out.splitlines()
        return [json.loads(line)["position"] for line in found]

    assert positions() == [1, 2, 3]
    assert positions("--action", "cancel_run") == [3]
    assert positions("--actor", "bob") == [2, 3]
    assert positions("--actor", "bob", "--target", second) == [2]
    text = shell.perdure("audit", "--entries", "--action", "cancel_run").out
    assert f"cancel_run  {first}  done  " in text
    assert 'reason="not needed"' in text
    assert shell.perdure("audit", "--actor", "bob").code == 2
