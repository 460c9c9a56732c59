"""A dead letter carries its run's payload: in Python, at a shell and over HTTP, without secrets."""

from __future__ import annotations

from command import Shell
from web_kit import calling, dead_letter, shop

SECRET = "hunter2-in-the-clear"


async def test_a_dead_letter_carries_the_payload(storage_url: str) -> None:
    async with shop(storage_url) as app:
        run_id = await dead_letter(app, message="out of paper")
        letter = await app.dead_letters.get(run_id)
        [listed] = await app.dead_letters.list()
        async with calling(storage_url) as client:
            told = (await client.get(f"/v1/dead-letters/{run_id}")).json()
            [item] = (await client.get("/v1/dead-letters")).json()["items"]

    assert letter.payload == told["payload"] == {"message": "out of paper"}
    assert listed.payload is None
    assert "payload" not in item


async def test_the_payload_is_shown_at_a_shell_without_secrets(shell: Shell) -> None:
    async with shop(shell.url) as app:
        run_id = await dead_letter(app, message=f"password={SECRET}")

    data = shell.perdure("dead-letters", "show", run_id, "--json")
    text = shell.perdure("dead-letters", "show", run_id)

    assert set(data.json["payload"]) == {"message"}
    assert "message" in text.out
    assert SECRET not in data.out + text.out
