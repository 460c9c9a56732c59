"""How log records look on standard error: for people, and as JSON."""

from __future__ import annotations

import json
import logging

import pytest

from perdure.cli.services.logs import JsonLines, Lines
from perdure.telemetry import table


@pytest.fixture
def failed(caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    table.ATTEMPT_FAILED.say(
        run_id="run_1", task="work", attempt=1, error="ValueError: no", next="next try at noon"
    )
    [record] = caplog.records
    return record


def test_a_line_for_people_does_not_repeat_what_its_message_says(
    failed: logging.LogRecord,
) -> None:
    line = Lines().format(failed)

    assert line.endswith("attempt 1 of work run_1 failed: ValueError: no; next try at noon")


def test_a_line_for_people_has_the_fields_that_its_message_lacks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "perdure"):
        table.SERVER_READY.say(address="http://localhost:8080", pid=7)
        logging.getLogger("perdure.task.mine").info("100 %", extra={"run_id": "run_1"})
    ready, mine = caplog.records

    assert Lines().format(ready).endswith("server ready at http://localhost:8080  pid=7")
    assert Lines().format(mine).endswith("100 %  run_id=run_1")


def test_a_line_of_json_keeps_every_field(failed: logging.LogRecord) -> None:
    line = json.loads(JsonLines().format(failed))

    assert {"run_id", "task", "attempt", "error", "next"} <= line.keys()
