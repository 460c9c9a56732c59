"""`perdure status`, beside a database and at a server."""

from __future__ import annotations

import pytest

from command import Shell

pytestmark = pytest.mark.system


def test_status_tells_ticks_schedules_leases_and_workers(shell: Shell) -> None:
    assert shell.perdure("migrate").code == 0
    assert "no tick yet" in shell.perdure("status").out
    assert shell.perdure("tick").code == 0

    told = shell.perdure("status")
    data = shell.perdure("status", "--json").json

    assert told.code == 0, told.err
    assert told.out.count("last tick ") == 2
    assert "expired leases  0\n" in told.out
    assert "next schedule   none\n" in told.out
    assert "workers         none\n" in told.out
    assert [service["name"] for service in data["services"]] == ["maintenance", "scheduler"]
    assert all(service["started_at"] and service["ticked_at"] for service in data["services"])
    assert (data["next_schedule"], data["expired_leases"], data["dead_letters"]) == (None, 0, 0)
