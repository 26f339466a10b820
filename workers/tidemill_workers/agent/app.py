"""The Celery worker that an agent is: a thread pool, its own queue, no acknowledgement, one task.

A doorbell is gone from the broker when the worker has it (`no_ack`): losing one is harmless, and keeping and dropping
it would cost two round trips before each claim.

Settings as measured (docs/explanation/celery.md): no `-E` and no `enable_events` command, so doorbells never show in
Flower; no gossip and no mingle, for a start in 0.6 s; prefetch off, so that no doorbell waits in a busy agent.
"""

from __future__ import annotations

from typing import Any

import structlog
from celery import Celery, signals
from celery.worker.control import Panel
from celery.worker.request import Request
from kombu import Queue

from tidemill.doorbell import TASK, make_app, queue_name
from tidemill_workers.agent.service import Agent

log = structlog.get_logger(__name__)


class DoorbellRequest(Request):  # type: ignore[misc]  # Celery has no types
    """A message that the broker has forgotten already."""

    def acknowledge(self) -> None:
        self.acknowledged = True


def make_worker_app(redis_url: str, agent: Agent) -> Celery:
    """Give the Celery app that serves one agent."""
    app = make_app(redis_url)
    app.set_current()
    queue = queue_name(agent.pool.name, agent.name)
    app.conf.update(
        task_acks_late=False,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        task_queues=[Queue(queue, routing_key=queue, no_ack=True)],
        task_default_queue=queue,
    )
    Panel.data.pop("enable_events", None)  # Flower would switch events of doorbells on

    def doorbell(*_: Any) -> None:  # older gateways name the agent
        agent.answer()

    app.task(name=TASK, Request=DoorbellRequest)(doorbell)
    return app


def serve(redis_url: str, agent: Agent, log_level: str) -> None:
    """Run the agent until it is told to stop. SIGTERM lets running jobs end first."""
    app = make_worker_app(redis_url, agent)

    def ready(**_: Any) -> None:
        log.info("agent.ready", agent=agent.name, pool=agent.pool.name, slots=agent.pool.slots)
        agent.start()

    def stopping(**_: Any) -> None:
        agent.drain()

    signals.worker_ready.connect(ready, weak=False)
    signals.worker_shutting_down.connect(stopping, weak=False)
    # Twice as many threads as slots: one fetches the next input, or publishes, while another one's function runs.
    app.conf.worker_pool = "tidemill_workers.agent.pool:WakingPool"
    argv = ["worker", "-c", str(2 * agent.pool.slots), "-n", f"{agent.pool.name}@{agent.name}"]
    argv += ["--without-gossip", "--without-mingle", "--loglevel", "WARNING" if log_level == "info" else log_level]
    try:
        app.worker_main(argv)
    finally:
        agent.stop()
