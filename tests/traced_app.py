"""An app whose spans go to a file, from a worker and from its processes. `SPANS` names it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from perdure import App, Context, Retry


class FileExporter(SpanExporter):
    """A line of JSON a span."""

    def __init__(self, path: str) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with open(self._path, "a") as file:
            file.writelines(span.to_json(indent=None) + "\n" for span in spans)
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(FileExporter(os.environ["SPANS"])))
tracer = provider.get_tracer("the user's")
app = App(os.environ["PERDURE_URL"], tracing=provider)


@app.task
async def leaf() -> None: ...


@app.task(retry=Retry(max_attempts=2, initial=0))
async def on_loop(ctx: Context) -> str:
    if ctx.attempt == 1:
        raise ValueError("the first time")
    return (await leaf.trigger()).id


@app.task
def in_thread() -> str:
    return leaf.trigger_sync().id


@app.task(executor="process")
def in_process() -> str:
    with tracer.start_as_current_span("inside"):
        return leaf.trigger_sync().id
