"""Celery on Redis. Two prefork children, one a core. `acks_late`, so that a killed worker's tasks
are delivered again as everybody else's are; a prefetch of 64 a child, and neither events nor remote
control nor results, which cost time with short tasks. It has no bulk call.
"""

from __future__ import annotations

from celery import Celery

from benchmarks.peers.body import PADDING, URL, job, produce, wish

app = Celery("bench", broker=URL)
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=64,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    task_send_sent_event=False,
    task_serializer="json",
    accept_content=["json"],
    broker_connection_retry_on_startup=True,
)


@app.task(name="noop")
def noop(sent: float, padding: str) -> None:
    job(sent)


def work() -> None:
    quiet = ["--loglevel", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    app.worker_main(["worker", "--pool", "prefork", "--concurrency", "2", *quiet])


if __name__ == "__main__":
    match wish().word:
        case "schema":
            pass
        case "worker":
            work()
        case _:
            produce(lambda sent: noop.delay(sent, PADDING))
