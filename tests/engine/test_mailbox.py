"""Calls from loops and threads to a loop."""

from __future__ import annotations

import asyncio
import threading

from perdure.engine.execution.mailbox import Mailbox
from perdure.engine.process.io_thread import IoThread
from waiting import MAX_WAIT_S


async def test_what_a_thread_posts_does_not_wait_for_a_loop_that_has_posted_and_is_busy() -> None:
    there = IoThread("there")
    mail = Mailbox(there.loop)
    delivered = threading.Event()

    mail.post(lambda: None)  # its wake-up is sent once this turn is over
    threading.Thread(target=mail.post, args=[delivered.set]).start()
    arrived = delivered.wait(MAX_WAIT_S)  # and this turn is a long one

    await there.close()
    assert arrived


async def test_the_calls_of_one_turn_come_together_and_in_order() -> None:
    there = IoThread("there")
    mail = Mailbox(there.loop)
    wakes: list[int] = []
    seen: list[int] = []
    done = threading.Event()
    deliver = mail._deliver

    def count() -> None:
        wakes.append(1)
        deliver()

    mail._deliver = count  # type: ignore[method-assign]  # to see how often it is called
    for number in range(100):
        mail.post(seen.append, number)
    mail.post(done.set)
    await asyncio.to_thread(done.wait, MAX_WAIT_S)
    await there.close()

    assert seen == list(range(100))
    assert len(wakes) == 1


async def test_one_call_that_raises_does_not_keep_the_others() -> None:
    there = IoThread("there")
    there.loop.set_exception_handler(lambda loop, context: None)
    mail, done = Mailbox(there.loop), threading.Event()

    def fail() -> None:
        raise ValueError

    mail.post(fail)
    mail.post(done.set)

    assert await asyncio.to_thread(done.wait, MAX_WAIT_S)
    await there.close()
