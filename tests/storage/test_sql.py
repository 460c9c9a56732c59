"""The queries of both dialects are the same questions, and none of them decides anything."""

from pathlib import Path

import psycopg
import pytest

from perdure.core.run.lifecycle import Status
from perdure.storage.postgres.dialect import columns
from perdure.storage.sql.queries import (
    Query,
    load_dialect,
    load_queries,
    positional,
    repeated,
    row_parameters,
)
from perdure.storage.sql.rows import COLUMNS

SOURCES = Path(__file__).resolve().parents[2] / "src" / "perdure"
CODE = "\n".join(path.read_text() for path in SOURCES.rglob("*.py"))
SQLITE = load_dialect("perdure.storage.sqlite")
POSTGRES = load_dialect("perdure.storage.postgres")

ONLY_POSTGRES = {"limit_transaction", "notify", "notify_apart", "transaction_id"}
"""Settings for one transaction, messages and its name, which SQLite does not have."""

SAMPLE = """-- What a dialect may look like.

-- name: first
-- Comments are for people: :not_a_parameter
SELECT a::text, '100%' -- :neither_is_this
  FROM t
 WHERE b = :b AND a < :a AND c = :b;

-- name: second
INSERT INTO t (a, b)
SELECT a, b
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       a integer, b text);

-- name: third
INSERT INTO t (a, b)
VALUES (:a, :b)
RETURNING a;
"""


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Query]:
    """The queries of `SAMPLE`, loaded from a package."""
    package = tmp_path / "a_dialect"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "queries.sql").write_text(SAMPLE)
    monkeypatch.syspath_prepend(tmp_path)
    return load_queries("a_dialect")


def test_both_dialects_ask_the_same_questions() -> None:
    assert set(POSTGRES) - set(SQLITE) == ONLY_POSTGRES
    assert set(SQLITE) <= set(POSTGRES)


def test_what_both_dialects_ask_in_the_same_words_is_written_once() -> None:
    sqlite, postgres = (
        load_queries("perdure.storage.sqlite"),
        load_queries("perdure.storage.postgres"),
    )

    words = {name: query.text.split() for name, query in sqlite.items()}
    assert [it for it in postgres if postgres[it].text.split() == words.get(it)] == []


@pytest.mark.parametrize("name", SQLITE)
def test_a_query_takes_the_same_parameters_in_both_dialects(name: str) -> None:
    assert set(SQLITE[name].parameters) == set(POSTGRES[name].parameters)


@pytest.mark.parametrize(
    "name", ["insert_runs", "update_runs", "start_runs", "end_runs", "insert_history"]
)
def test_rows_without_names_have_the_same_order_in_both_dialects(name: str) -> None:
    assert SQLITE[name].parameters == POSTGRES[name].parameters


def test_a_new_run_has_all_columns_in_their_order() -> None:
    assert SQLITE["insert_runs"].parameters == COLUMNS


@pytest.mark.parametrize("name", POSTGRES)
def test_a_query_is_used(name: str) -> None:
    # Conditions of `find_runs` are named after the field of the filter. Counts of old runs have the
    # name of the query that finds them.
    spelt = {f'"{name.removeprefix(prefix)}"' for prefix in ("", "where_", "count_")}

    assert any(word in CODE for word in spelt)


@pytest.mark.parametrize("queries", [SQLITE, POSTGRES], ids=["sqlite", "postgres"])
@pytest.mark.parametrize("status", Status)
def test_no_query_knows_a_status(queries: dict[str, Query], status: Status) -> None:
    assert [query.name for query in queries.values() if f"'{status}'" in query.text] == []


def test_queries_are_found_by_name(sample: dict[str, Query]) -> None:
    assert list(sample) == ["first", "second", "third"]
    assert sample["second"].name == "second"


def test_comments_and_the_final_semicolon_are_left_out(sample: dict[str, Query]) -> None:
    text = sample["first"].text

    assert text.startswith("SELECT a::text")
    assert "--" not in text
    assert text.endswith("c = :b")


def test_parameters_are_named_once_in_order_of_use(sample: dict[str, Query]) -> None:
    assert sample["first"].parameters == ("b", "a")


def test_the_columns_of_a_set_of_rows_are_parameters(sample: dict[str, Query]) -> None:
    assert sample["second"].parameters == ("a", "b")


def test_parameters_are_respelt_for_a_driver(sample: dict[str, Query]) -> None:
    text = positional(sample["first"].text, "%(name)s")

    assert "b = %(b)s AND a < %(a)s AND c = %(b)s" in text
    assert "a::text, '100%%'" in text


def test_percent_signs_stay_where_the_driver_does_not_mind(sample: dict[str, Query]) -> None:
    assert "'100%'" in positional(sample["first"].text, "$name")


def test_a_row_of_values_is_repeated(sample: dict[str, Query]) -> None:
    text = repeated(sample["third"], 3)

    assert text.split("\n") == [
        "INSERT INTO t (a, b)",
        "VALUES (?, ?), (?, ?), (?, ?)",
        "RETURNING a",
    ]


def test_what_is_the_same_for_all_rows_stands_around_them() -> None:
    text = "UPDATE t SET a = :a FROM (VALUES (:b, :c)) WHERE d = :d"
    query = Query("sample", text, ("a", "b", "c", "d"))

    assert repeated(query, 2) == "UPDATE t SET a = ? FROM (VALUES (?, ?), (?, ?)) WHERE d = ?"
    assert query.parameters[row_parameters(query)] == ("b", "c")


def test_columns_are_arrays_and_documents_stand_side_by_side() -> None:
    text = "unnest(:name::text[], :number::integer[], :note::text[], :flag::boolean[], :state)"
    query = Query("sample", text, ("name", "number", "note", "flag", "state"))
    rows = [("first", 1, None, True, "{}"), ("second", 2, "x", False, "[1]")]

    assert columns(query, rows) == {
        "name": '{"first","second"}',
        "number": "{1,2}",
        "note": '{null,"x"}',
        "flag": "{true,false}",
        "state": "{}\x1e[1]",
    }


def test_what_a_query_does_not_take_as_an_array_is_sent_once() -> None:
    query = Query("sample", "a = ANY (:a::text[]) AND b = :b::text", ("a", "b"))

    assert columns(query, [("x", "same"), ("y", "same")]) == {"a": '{"x","y"}', "b": "same"}


def test_an_array_takes_any_text(postgres_url: str) -> None:
    texts = ('a "quoted" name', "back\\slash", "two\nlines", "null", "{,}", "ä€🎉", " ", "", None)

    with psycopg.connect(postgres_url) as connection:
        query = Query("sample", "SELECT :texts::text[]", ("texts",))
        sent = columns(query, [(text,) for text in texts])
        [[got]] = connection.execute("SELECT %(texts)s::text[]", sent).fetchall()

    assert tuple(got) == texts
