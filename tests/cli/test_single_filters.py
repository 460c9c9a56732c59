"""A filter that is given twice is refused, not half ignored; a wrong server is named as such."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from command import Shell

OPTIONS = ["--task", "--queue", "--tag", "--text", "--batch", "--created-after", "--since"]


@pytest.mark.parametrize("option", OPTIONS)
def test_a_filter_that_is_given_twice_is_refused(option: str, shell: Shell) -> None:
    answer = shell.perdure("runs", "list", option, "a", option, "b")

    assert answer.code == 2
    assert f"{option} may be given only once." in answer.err


OTHERS = [
    ("dead-letters", "list", "--status"),
    ("webhooks", "create", "orders", "https://example.com", "--secret", "HOOK", "--task"),
    ("webhooks", "create", "orders", "https://example.com", "--secret", "HOOK", "--queue"),
    ("webhooks", "update", "orders", "--status"),
    ("audit", "--entries", "--action"),
    ("audit", "--entries", "--actor"),
    ("audit", "--entries", "--target"),
]


@pytest.mark.parametrize("words", OTHERS, ids=" ".join)
def test_so_is_a_filter_of_anything_else(words: tuple[str, ...], shell: Shell) -> None:
    *command, option = words
    answer = shell.perdure(*command, option, "a", option, "b")

    assert answer.code == 2
    assert f"{option} may be given only once." in answer.err


def test_a_filter_that_is_given_once_is_taken(shell: Shell) -> None:
    shell.perdure("migrate")
    answer = shell.perdure("runs", "list", "--queue", "mail")

    assert answer.code == 0


class NotFound(BaseHTTPRequestHandler):
    """Another framework's server."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"] or 0))
        body = b'{"detail": "Not Found"}'
        self.send_response(404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def other_server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), NotFound)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_server_that_is_not_perdures_is_named_as_such(shell: Shell, other_server: str) -> None:
    answer = shell.perdure("runs", "list", "--url", other_server)

    assert answer.code != 0
    assert "Not Found; this is no Perdure server" in answer.err
