"""The Celery side of placement: doorbells for agents, and rows for Flower.

A doorbell is a Celery message that says nothing but "look into the ledger"; losing or doubling one is harmless, so
`ring` never raises. Flower's rows do not come from doorbells: `FlowerEvents` turns the ledger's transitions into the
events that Celery's own workers would send, one row per job, uuid = job id, name = function.

`app` is what Flower is started with: `celery -A tidemill.doorbell:app flower --enable_events=False`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import structlog
from celery import Celery
from kombu import Exchange, Queue
from kombu.exceptions import InconsistencyError, OperationalError
from kombu.utils.uuid import uuid

from tidemill.models import JobState

if TYPE_CHECKING:
    from tidemill.ledger.api import Transition

TASK = "tidemill.doorbell"
LISTENER = "tidemill-flower"  # the name of Flower's connections
_EVENTS = Exchange("celeryev", type="fanout")  # as Celery itself makes it on Redis; as a topic nobody would read it
_NOBODY = "queue@tidemill"  # the worker of rows that ended without an agent
# `retry_on_timeout` stays off: a replayed LPUSH is a second doorbell. Only one priority, so one list per queue.
TRANSPORT_OPTIONS = {
    "visibility_timeout": 86400,
    "unacked_restore_interval": 10,
    "unacked_restore_throttle": 1,
    "priority_steps": [0],
    "queue_order_strategy": "round_robin",
    "health_check_interval": 10,
    "socket_keepalive": True,
    "socket_connect_timeout": 5,
    "socket_timeout": 30,
}
log = structlog.get_logger(__name__)


def make_app(redis_url: str, client_name: str | None = None) -> Celery:
    """Give the Celery app of producers and of Flower: JSON only, no result backend, no events of its own.

    `client_name` is what its connections are called in Redis.
    """
    app = Celery("tidemill", broker=redis_url, set_as_current=False)
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_send_sent_event=False,
        worker_send_task_events=False,
        task_create_missing_queues=False,
        task_default_queue="unrouted",
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={**TRANSPORT_OPTIONS, **({"client_name": client_name} if client_name else {})},
        event_queue_ttl=5,
        event_queue_expires=60,
    )
    return app


def __getattr__(name: str) -> Any:
    if name == "app":  # Flower's; the only place here that reads the settings
        from tidemill.settings import Settings

        return make_app(Settings().redis.url.get_secret_value(), LISTENER)
    raise AttributeError(name)


def queue_name(pool: str, agent: str) -> str:
    """Give the name of an agent's own queue."""
    return f"{pool}.{agent}"


class Doorbell:
    """Rings agents. One for each process; safe from any thread."""

    def __init__(self, redis_url: str) -> None:
        self._app = make_app(redis_url)

    def ring(self, pool: str, agent: str, job_id: str = "", function: str = "") -> bool:
        """Tell an agent to look into the ledger. False when the broker does not answer: the sweep rings again."""
        message = self.message(job_id, function)
        try:
            with self._app.pool.acquire(block=True) as connection:
                try:
                    connection.default_channel.client.lpush(queue_name(pool, agent), message)
                except (*connection.connection_errors, *connection.channel_errors) as error:
                    raise ConnectionError(str(error)) from error  # also a Redis that is full takes no message
        except (OperationalError, OSError) as error:
            log.warning("doorbell.failed", agent=agent, error=str(error))
            return False
        return True

    def message(self, job_id: str = "", function: str = "") -> str:
        """Give a doorbell as Celery's `send_task` would leave it in the list of an agent's queue, for any agent.

        One LPUSH brings it there, ours or that of the ledger's script which binds the job. Celery's own way declares
        the queue and builds a Redis client for each message: 0.7 ms of CPU for a list that the worker has made.
        """
        body, headers, properties = self._template
        made = uuid()
        return json.dumps(
            {
                "body": body,
                "content-encoding": "utf-8",
                "content-type": "application/json",
                "headers": {**headers, "id": made, "root_id": made, "argsrepr": job_id, "shadow": function or None},
                "properties": {**properties, "correlation_id": made, "delivery_tag": made},
            }
        )

    @cached_property
    def _template(self) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """The body of all doorbells, their headers and their properties."""
        task = self._app.amqp.as_task_v2("", TASK, ignore_result=True)
        body = base64.b64encode(json.dumps(task.body).encode()).decode()
        info = {"exchange": "", "routing_key": ""}
        properties = {"delivery_mode": 2, "delivery_info": info, "priority": 0, "body_encoding": "base64"}
        return body, task.headers, {**task.properties, **properties}

    def close(self) -> None:
        """Drop the connections to the broker."""
        self._app.pool.force_close_all()

    def forget(self, pool: str, agent: str) -> None:
        """Delete the queue of an agent that is gone."""
        try:
            with self._app.connection_for_write() as connection:
                name = queue_name(pool, agent)
                # Bound as the agent's worker binds it: a channel deletes only the bindings that it knows.
                queue = Queue(name, Exchange(name), routing_key=name)(connection.default_channel)
                queue.declare()
                queue.delete()
        except (OperationalError, OSError) as error:
            log.warning("doorbell.forget_failed", agent=agent, error=str(error))


class FlowerEvents:
    """Sends the ledger's transitions to Flower, in groups."""

    def __init__(self, redis_url: str) -> None:
        self._app = make_app(redis_url)

    def close(self) -> None:
        """Drop the connections to the broker."""
        self._app.pool.force_close_all()

    def listeners(self) -> frozenset[str]:
        """Give who reads Celery events now: a new member is a Flower that (re)started or lost its connection.

        The set of queues is not enough: a Flower stands in it a moment before it hears anything, and stays in it while
        its connection is broken. What is published meanwhile is lost. So its subscribed connections are members too;
        a Redis that does not show them to us leaves the queues.

        Raises:
            OSError: when the broker does not answer.
        """
        with self._app.pool.acquire(block=True) as connection:
            try:
                channel = connection.default_channel
                return frozenset(self._queues(channel)) | frozenset(self._subscribed(connection, channel))
            except (OperationalError, *connection.connection_errors) as error:
                raise ConnectionError(str(error)) from error

    @staticmethod
    def _queues(channel: Any) -> Iterator[str]:
        try:
            rows = channel.get_table("celeryev")
        except InconsistencyError:
            return
        for row in rows:
            yield str(row[-1])

    @staticmethod
    def _subscribed(connection: Any, channel: Any) -> Iterator[str]:
        try:
            clients = channel.client.client_list(_type="pubsub")
        except connection.channel_errors as error:
            log.debug("flower.connections_not_shown", error=str(error))
            return
        for client in clients:
            if client.get("name") == LISTENER:
                yield f"connection {client['id']}"

    def send(self, transitions: Iterable[Transition]) -> int:
        """Send the events of these transitions as one message. Gives their number.

        Raises:
            OSError: when the broker does not answer.
        """
        events = [event for line in transitions for event in self._events(line)]
        if not events:
            return 0
        try:
            with self._app.amqp.producer_pool.acquire(block=True) as producer:
                producer.publish(
                    events,
                    exchange=_EVENTS,
                    routing_key="task.multi",
                    declare=[_EVENTS],
                    serializer="json",
                    headers={"hostname": _NOBODY},
                    retry=False,
                )
        except OperationalError as error:
            raise ConnectionError(str(error)) from error
        return len(events)

    def _events(self, line: Transition) -> Iterator[dict[str, Any]]:
        worker = line.agent or ""
        hostname = f"{worker.rsplit('-', 1)[0]}@{worker}" if worker else _NOBODY
        for kind, fields in describe(line):
            yield {
                "type": kind,
                "uuid": line.job_id,
                "timestamp": line.at,
                "hostname": hostname,
                "utcoffset": 0,
                "pid": 0,
                "clock": self._app.clock.forward(),
                "name": line.function,
                **fields,
            }


def describe(line: Transition) -> list[tuple[str, dict[str, Any]]]:
    """Give the Celery events (type, fields) that show a transition in Flower.

    A claim is both received and started: Flower sorts by the one, counts a worker's tasks by it, and shows the other.
    A new generation is sent as a retry: Celery's state would not leave a final state for another event.
    """
    if line.state is JobState.queued and line.created and line.generation == 1:
        fields = {"args": line.summary, "kwargs": "{}", "retries": 0, "queue": line.function, "root_id": line.job_id}
        return [("task-sent", fields)]
    if line.state is JobState.queued:
        return [("task-retried", {"exception": line.error or "queued again", "traceback": ""})]
    if line.state is JobState.running and line.agent:  # without an agent it was seized, to be ended without a run
        fields = {"args": line.summary, "kwargs": "{}", "retries": max(0, line.attempt - 1)}
        return [("task-received", fields), ("task-started", fields)]
    if line.state is JobState.succeeded:
        return [("task-succeeded", {"result": "published", "runtime": line.run_s})]
    if line.state is JobState.failed:
        return [("task-failed", {"exception": line.error or "failed", "traceback": ""})]
    if line.state is JobState.cancelled:
        return [("task-revoked", {"terminated": True, "signum": "", "expired": False})]
    return []
