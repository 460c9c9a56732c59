"""What would pass without having tested anything fails, and says why."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import App
from perdure.errors import InvalidInput
from perdure.testing import Kit, point
from perdure.testing.kit.world import Stuck


@pytest.fixture
def app() -> App:
    app = App("sqlite:///never-made.db")

    @app.task
    async def work(n: int) -> int:
        point("half way")
        return n

    app.queue("shut", concurrency=0)

    @app.task(queue="shut")
    async def waits() -> None: ...

    return app


def test_a_crash_that_never_came_fails_the_test(app: App) -> None:
    kit = Kit(app).__enter__()
    kit.crash_at_point("halfway")
    app.tasks["work"].trigger_sync(1)
    kit.run_until_done()
    with pytest.raises(Stuck, match="'halfway' was not passed; passed were: 'half way'"):
        kit.__exit__(None, None, None)


def test_a_crash_that_came_and_one_that_was_reset_do_not(app: App) -> None:
    with Kit(app) as kit:
        kit.crash_at_point("half way")
        app.tasks["work"].trigger_sync(1)
        kit.run_until_done()
        kit.crash_at_point("never")
        kit.reset()


def test_the_error_of_the_test_itself_is_not_hidden(app: App) -> None:
    kit = Kit(app).__enter__()
    kit.crash_at_point("never")
    error = ZeroDivisionError()
    kit.__exit__(type(error), error, None)  # raises nothing of its own


def test_that_an_unknown_task_was_not_triggered_proves_nothing(app: App) -> None:
    with Kit(app) as kit:
        kit.assert_not_triggered("work")
        with pytest.raises(InvalidInput, match="no task 'wrok'; did you mean work"):
            kit.assert_not_triggered("wrok")
        with pytest.raises(InvalidInput, match=r"prioriti: is no option.*did you mean priority"):
            kit.assert_not_triggered("work", prioriti=3)


def test_runs_that_nobody_will_ever_take_are_named_with_their_reason(app: App) -> None:
    with Kit(app) as kit:
        app.tasks["waits"].trigger_sync()
        with pytest.raises(
            Stuck, match=r"waits \(run_.*Queue shut lets nobody through: its limit is 0"
        ):
            kit.run_until_done()


def test_what_an_operator_holds_is_not_held_by_mistake(app: App) -> None:
    with Kit(app) as kit:
        run = app.tasks["work"].trigger_sync(1)
        kit.run(app.queues.pause("default", "later"))
        kit.run_until_done()
        assert kit.get(run).status == "queued"


def test_why_knows_the_app_before_anything_was_run(app: App) -> None:
    with Kit(app):
        run = app.tasks["work"].trigger_sync(1)
        assert "No app has ever said" not in str(app.sync.runs.why(run))


def test_what_is_no_task_and_no_instant_is_refused(app: App) -> None:
    wrong: Any = "work"
    with Kit(app) as kit:
        with pytest.raises(InvalidInput, match="task: must be a task, not 'work'"):
            kit.execute(wrong, 1)
        with pytest.raises(InvalidInput, match="instant: must be a datetime, not 'work'"):
            kit.advance_to(wrong)
        with pytest.raises(InvalidInput, match="did you mean replay"):
            Kit(app, **{"replays": "x"})  # type: ignore[arg-type]  # that is the point


def test_a_mark_takes_only_what_it_knows(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.perdure_app(strat="x")
        def test_marked(perdure_kit): ...
        """
    )
    result = pytester.runpytest_subprocess()
    result.stdout.fnmatch_lines(
        ["*perdure_app takes app=, database=, seed= and start=, not strat*"]
    )
