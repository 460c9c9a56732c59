"""A read of the keys that fails after its caller has gone leaves no traceback in the log."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from perdure import App
from perdure.web.auth.key_cache import Keyring
from raw import execute

BROKEN = "ALTER TABLE perdure_records RENAME TO perdure_hidden"


async def test_a_failed_read_that_no_caller_awaits_is_not_reported(shop_app: App) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    keyring = Keyring(shop_app)
    execute(shop_app.url, BROKEN)
    others = asyncio.all_tasks()
    reader = asyncio.create_task(keyring.refresh())
    await asyncio.sleep(0)
    [read] = asyncio.all_tasks() - {asyncio.current_task(), reader} - others
    reader.cancel()
    await asyncio.wait([reader, read])
    assert not read.cancelled()

    del keyring, reader, read
    gc.collect()

    assert reported == []
