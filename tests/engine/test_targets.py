"""What http and shell tasks do, as data: what is taken, and what is refused with which advice."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perdure import Redaction
from perdure.engine.runtime.secret import (
    Allow,
    Secret,
    SecretNotHad,
    Secrets,
    anything,
    only,
    secret,
)
from perdure.engine.tasks.target import (
    HttpTarget,
    ShellTarget,
    Stdout,
    Target,
    read_target,
)
from perdure.errors import InvalidInput
from perdure.telemetry.redactor import Mask

URL = "https://example.com/hooks/1?a=b"


def test_a_target_comes_back_from_json_as_it_was() -> None:
    targets: list[Target] = [
        HttpTarget(
            url=URL,
            method="PUT",
            headers={"X-Team": "red", "Authorization": secret("AUTH", prefix="Bearer ")},
            signing_secrets=(secret("NEW"), secret("OLD")),
        ),
        ShellTarget(argv=("pg_dump", "shop"), env={"PGPASSWORD": secret("PG")}, permanent=(64,)),
    ]

    for target in targets:
        assert msgspec.json.decode(msgspec.json.encode(target), type=Target) == target
        assert read_target(msgspec.to_builtins(target)) == target


def test_plain_data_becomes_a_target_with_its_references() -> None:
    made = read_target(
        {"kind": "shell", "argv": ["run", "me"], "env": {"KEY": {"secret": "K"}}, "stdout": "json"}
    )

    assert made == ShellTarget(argv=("run", "me"), env={"KEY": Secret("K")}, stdout=Stdout.JSON)


@pytest.mark.parametrize(
    ("data", "field", "advice"),
    [
        ("https://example.com", "target", "must be a mapping"),
        ({}, "target.kind", "http or shell"),
        ({"kind": "ftp"}, "target.kind", "not 'ftp'"),
        ({"kind": "http"}, "target.url", "is missing"),
        ({"kind": "http", "ulr": URL}, "target.ulr", "did you mean url?"),
        ({"kind": "http", "url": "example.com"}, "target.url", "https://"),
        ({"kind": "http", "url": 7}, "target.url", "not 7"),
        ({"kind": "http", "url": URL, "method": "post"}, "target.method", "POST"),
        ({"kind": "http", "url": URL, "headers": ["A"]}, "target.headers", "dict"),
        ({"kind": "http", "url": URL, "headers": {"A b": "c"}}, "target.headers.A b", "letters"),
        ({"kind": "http", "url": URL, "headers": {"A": "b\r\nC: d"}}, "target.headers.A", "line"),
        ({"kind": "http", "url": URL, "headers": {"A": 1}}, "target.headers.A", "ASCII"),
        ({"kind": "http", "url": URL, "headers": {"Host": "a"}}, "target.headers.Host", "leave"),
        (
            {"kind": "http", "url": URL, "headers": {"webhook-id": "a"}},
            "target.headers.webhook-id",
            "leave it out",
        ),
        ({"kind": "http", "url": URL, "headers": {"a": "b", "A": "c"}}, "target.headers.A", "once"),
        ({"kind": "http", "url": URL, "signing_secrets": ["x"]}, "target.signing_secrets", "refer"),
        ({"kind": "http", "url": URL, "response_limit": 0}, "target.response_limit", "from 1"),
        ({"kind": "http", "url": URL, "response_limit": 10**9}, "target.response_limit", "at most"),
        ({"kind": "shell", "argv": "rm -rf"}, "target.argv", 'for a shell say ["sh", "-c"'),
        ({"kind": "shell", "argv": []}, "target.argv", "1 to"),
        ({"kind": "shell", "argv": [""]}, "target.argv[0]", "empty"),
        ({"kind": "shell", "argv": ["a", 1]}, "target.argv[1]", "must be text"),
        ({"kind": "shell", "argv": ["a\0"]}, "target.argv[0]", "NUL"),
        ({"kind": "shell", "argv": ["\ud800"]}, "target.argv[0]", "must be text"),
        ({"kind": "shell", "argv": ["a"], "env": {"A B": "c"}}, "target.env.A B", "letters"),
        ({"kind": "shell", "argv": ["a"], "env": {"A": 3}}, "target.env.A", "must be text"),
        ({"kind": "shell", "argv": ["a"], "env": []}, "target.env", "dict"),
        (
            {"kind": "shell", "argv": ["a"], "env": {"PERDURE_RUN_ID": "1"}},
            "target.env.PERDURE_RUN_ID",
            "another name",
        ),
        (
            {"kind": "shell", "argv": ["a"], "env": {"A": {"secret": "B C"}}},
            "target.secret",
            "environment variable",
        ),
        ({"kind": "shell", "argv": ["a"], "cwd": "here"}, "target.cwd", "absolute"),
        ({"kind": "shell", "argv": ["a"], "permanent": 3}, "target.permanent", "list"),
        ({"kind": "shell", "argv": ["a"], "permanent": [0]}, "target.permanent", "1 to 255"),
        ({"kind": "shell", "argv": ["a"], "stdout": "xml"}, "target.stdout", "text, json"),
    ],
)
def test_a_bad_target_is_refused_with_its_field_and_what_to_do(
    data: Any, field: str, advice: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_target(data)

    assert refused.value.field == field
    assert advice in refused.value.problem


# Secrets


def test_a_secret_is_looked_up_by_name_and_may_have_a_prefix() -> None:
    secrets = Secrets({"TOKEN": "s3cr3t"})

    assert secrets.value("plain") == "plain"
    assert secrets.value(secret("TOKEN", prefix="Bearer ")) == "Bearer s3cr3t"
    with pytest.raises(SecretNotHad, match="OTHER is not in this process's environment"):
        secrets.value(secret("OTHER"))


def test_only_listed_secrets_are_given_to_what_came_from_elsewhere() -> None:
    environ = {"STRIPE_KEY": "k", "SMTP_USER": "u", "DATABASE_URL": "d"}
    secrets = Secrets(environ, only("STRIPE_KEY, SMTP_*", "target_secrets"))

    assert (secrets.value(secret("STRIPE_KEY")), secrets.value(secret("SMTP_USER"))) == ("k", "u")
    with pytest.raises(SecretNotHad, match="target_secrets"):
        secrets.value(secret("DATABASE_URL"))
    with pytest.raises(SecretNotHad):
        Secrets(environ, only("", "target_secrets")).value(secret("STRIPE_KEY"))


@pytest.mark.parametrize("allow", [anything, only("", "webhook_secrets")])
def test_what_is_missing_is_told_in_words_that_pass_for_no_secret(allow: Allow) -> None:
    with pytest.raises(SecretNotHad) as refused:
        Secrets({}, allow).value(secret("STRIPE_SECRET"))

    assert Redaction().text(str(refused.value)) == str(refused.value)


def test_a_mask_hides_a_value_however_it_is_spelled() -> None:
    mask = Mask(
        ['pa"ss/wörd', "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "line one\nline two", "ab"]
    )

    assert mask.text('x pa"ss/wörd y') == "x [redacted] y"
    assert mask.text(r'{"a":"pa\"ss\/w\u00f6rd"}') == '{"a":"[redacted]"}'
    assert mask.text("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw") == "[redacted]"
    assert mask.text("> line two <") == "> [redacted] <"
    assert mask.text("ab stays: it is everywhere") == "ab stays: it is everywhere"


def test_a_cut_leaves_no_half_of_a_secret() -> None:
    mask = Mask(["hunter2000"])

    assert mask.head("password is hunter20") == "password is "
    assert mask.tail("ter2000 was it") == " was it"
    assert mask.head("nothing here") == "nothing here"
    assert Mask([]).head("as it is") == Mask([]).tail("as it is") == "as it is"
