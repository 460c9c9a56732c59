"""Alembic's autogenerate leaves our tables alone, with the filter that the documentation gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

# SQLAlchemy reads the columns of all tables first, and does not know PostgreSQL's xid8.
pytestmark = pytest.mark.filterwarnings("ignore:Did not recognize type:sqlalchemy.exc.SAWarning")


def is_ours_to_migrate(name: str | None, type_: str, parents: Mapping[str, str | None]) -> bool:
    return not (type_ == "table" and name is not None and name.startswith("perdure_"))


def changes(url: str, include_name: Callable[..., bool] | None, **options: Any) -> list[Any]:
    """Return what autogenerate would write for an application with one table, `orders`."""
    if url.startswith("postgresql"):
        url = url.replace("postgresql://", "postgresql+psycopg://", 1)
    metadata = sqlalchemy.MetaData()
    sqlalchemy.Table("orders", metadata, sqlalchemy.Column("id", sqlalchemy.Integer))
    engine = sqlalchemy.create_engine(url)
    try:
        with engine.connect() as connection:
            settings = {"include_name": include_name, **options}
            context = MigrationContext.configure(connection, opts=settings)
            found: list[Any] = compare_metadata(context, metadata)
            return found
    finally:
        engine.dispose()


def test_autogenerate_would_drop_our_tables_without_a_filter(storage_url: str) -> None:
    assert "remove_table" in {change[0] for change in changes(storage_url, None)}


def test_autogenerate_leaves_our_tables_alone_with_the_filter(storage_url: str) -> None:
    [(kind, table)] = changes(storage_url, is_ours_to_migrate)

    assert (kind, table.name) == ("add_table", "orders")
