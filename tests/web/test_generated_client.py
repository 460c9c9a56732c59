"""A client that `openapi-python-client` generates from the document, calling a live server."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hook_kit import SECRET
from perdure.web.openapi.document import document
from perdure.web.operations.table import ROUTES
from web_kit import dead_letter, serving, shop

PACKAGE = "generated_perdure_client"
OPTIONS = f"package_name_override: {PACKAGE}\npost_hooks: []\n"
HOOK = {
    "name": "billing",
    "url": "https://example.com/hook",
    "signing_secrets": ["WEBHOOK_TEST"],
}


class Generated:
    """The generated package, and what the generator printed."""

    def __init__(self, directory: Path, output: str) -> None:
        self.output = output
        self.operations = {path.stem: path.parent.name for path in directory.glob("api/*/*.py")}

    def module(self, name: str) -> Any:
        return importlib.import_module(f"{PACKAGE}.{name}")


class Caller:
    """A client of the generated package, connected to a server."""

    def __init__(self, generated: Generated, client: Any) -> None:
        self._generated = generated
        self._client = client

    def model(self, name: str) -> Any:
        return getattr(self._generated.module("models"), name)

    def call(self, operation: str, *arguments: Any, **named: Any) -> Any:
        """Return the response of an operation, parsed into the generated models."""
        group = self._generated.operations[operation]
        endpoint = self._generated.module(f"api.{group}.{operation}")
        return endpoint.sync_detailed(*arguments, client=self._client, **named)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generated]:
    directory = tmp_path_factory.mktemp("generated")
    (directory / "openapi.json").write_bytes(document(ROUTES))
    (directory / "options.yaml").write_text(OPTIONS)
    command = (
        "-m openapi_python_client generate --path openapi.json --config options.yaml --meta none "
        f"--fail-on-warning --output-path {PACKAGE}"
    )
    made = subprocess.run(
        [sys.executable, *command.split()], cwd=directory, capture_output=True, text=True
    )
    sys.path.insert(0, str(directory))
    yield Generated(directory / PACKAGE, made.stdout + made.stderr)
    sys.path.remove(str(directory))


@pytest_asyncio.fixture
async def run_id(storage_url: str) -> str:
    """The id of a dead letter."""
    async with shop(storage_url) as app:
        return await dead_letter(app, message="gone")


@pytest.fixture
def caller(generated: Generated, storage_url: str, tmp_path: Path, run_id: str) -> Iterator[Caller]:
    with (
        serving(storage_url, tmp_path, WEBHOOK_TEST=SECRET) as server,
        generated.module("client").Client(base_url=server.address) as client,
    ):
        yield Caller(generated, client)


def test_the_generator_accepts_every_operation(generated: Generated) -> None:
    assert "WARNING" not in generated.output.upper(), generated.output
    assert set(generated.operations) >= {route.name for route in ROUTES}, generated.output


def test_a_generated_client_reads_all_kinds_of_responses(caller: Caller, run_id: str) -> None:
    _trigger_and_list(caller)
    _read_problems(caller)
    _read_webhooks_and_queues(caller)
    _read_failures(caller, run_id)


def _trigger_and_list(caller: Caller) -> None:
    body = caller.model("TriggerBody").from_dict({"task": "double", "payload": {"number": 2}})

    made = caller.call("trigger_run", body=body)
    run = caller.call("get_run", made.parsed.id)
    page = caller.call("list_runs", status="queued", limit=5)

    assert (made.status_code, made.parsed.created) == (201, True)
    assert (run.parsed.task, run.parsed.payload) == ("double", {"number": 2})
    assert [it.id for it in page.parsed.items] == [made.parsed.id]


def _read_problems(caller: Caller) -> None:
    body = caller.model("TriggerBody").from_dict({"task": "double"})

    refused = caller.call("trigger_run", body=body)
    missing = caller.call("get_run", f"run_{'0' * 32}")

    assert isinstance(refused.parsed, caller.model("Problem"))
    assert refused.status_code == 422
    assert refused.parsed.type_ == "urn:perdure:problem:invalid-payload"
    assert [it.field for it in refused.parsed.errors] == ["number"]
    assert (missing.status_code, missing.parsed.status) == (404, 404)


def _read_webhooks_and_queues(caller: Caller) -> None:
    made = caller.call("create_webhook", body=caller.model("WebhookBody").from_dict(HOOK))
    listed = caller.call("list_webhooks")
    queue = caller.call("pause_queue", "numbers")

    assert isinstance(made.parsed, caller.model("Webhook"))
    assert [it.name for it in listed.parsed.items] == ["billing"]
    assert isinstance(queue.parsed.paused, caller.model("SettingsPause"))


def _read_failures(caller: Caller, run_id: str) -> None:
    letter = caller.call("get_dead_letter", run_id)
    run = caller.call("get_run", run_id)

    assert letter.parsed.run_id == run_id
    assert run.parsed.failure.message == "gone"
