"""An app that lets its secrets slip wherever it can. Spans go to the file that `SPANS` names; the
secrets are in the environment, as `LEAK_…`."""

from __future__ import annotations

import os
import sys
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from perdure import App, Context, Retry, secret
from traced_app import FileExporter

ONCE = Retry(max_attempts=1, on_exhausted="dead_letter")
SHELL = """if True:
    import os, sys
    print("the key is", os.environ["KEY"])
    print("password =", os.environ["KEY"], file=sys.stderr)
    sys.exit(3)
"""

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(FileExporter(os.environ["SPANS"])))
app = App(os.environ["PERDURE_URL"], tracing=provider)


@app.task(queue="leaks", retry=ONCE)
async def leak(ctx: Context, password: str, note: str) -> dict[str, Any]:
    said = f"logged in with password={os.environ['LEAK_LOG']}"
    ctx.log.info(said, token=password)
    ctx.progress(0.5, f"token: {os.environ['LEAK_PROGRESS']}")
    return {"access_token": os.environ["LEAK_RESULT"], "note": note}


@app.task(queue="leaks", retry=ONCE)
async def fail(password: str) -> None:
    raise ValueError(f"refused: password={os.environ['LEAK_ERROR']}")


app.shell_task(
    "speak", argv=[sys.executable, "-c", SHELL], env={"KEY": secret("LEAK_SHELL")}, retry=ONCE
)
app.http_task(
    "ask",
    url=f"{os.environ['ENDPOINT']}?token={os.environ['LEAK_TARGET_URL']}",
    headers={
        "Authorization": secret("LEAK_HEADER", prefix="Bearer "),
        "x-api-token": os.environ["LEAK_LITERAL"],
    },
    retry=ONCE,
)
