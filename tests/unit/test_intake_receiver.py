"""The receiver: events while functions are deployed, and bodies for which there is no room."""

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from pydantic import SecretStr

from tests.support import wait_until
from tidemill.errors import LedgerUnavailable
from tidemill.models import BucketEvent, FunctionRecord, FunctionSpec
from tidemill.record import Record
from tidemill.settings import GatewaySettings, IntakeSettings
from tidemill.store import ObjectInfo
from tidemill.testing import MemoryLedger, MemoryStore
from tidemill_gateway.api.hooks import Hooks
from tidemill_gateway.intake.dialects import read
from tidemill_gateway.services import Services


class Deploying(MemoryStore):
    """A store that answers slowly: `deploys` functions are deployed during its first HEADs."""

    ledger: MemoryLedger
    deploys = 0
    heads = 0

    def head(self, bucket: str, key: str, version_id: str | None = None) -> ObjectInfo | None:
        self.heads += 1
        if bucket == "inbox" and self.heads <= self.deploys:
            deploy(self.ledger, f"f{self.heads}")
        return super().head(bucket, key, version_id)


def deploy(ledger: MemoryLedger, name: str) -> None:
    trigger = {"bucket": "inbox", "prefix": f"{name}/"}
    spec = FunctionSpec.model_validate({"name": name, "handler": "m:f", "trigger": [trigger]})
    ledger.put_function(FunctionRecord(spec=spec, revision="r1", deployed_at=0, triggers_since=0))


def gateway(store: MemoryStore, ledger: MemoryLedger) -> Services:
    """One with a function `f0`, whose threads are not started."""
    record = Record(store)
    record.prepare()
    store.ensure_bucket("inbox")
    ledger.begin_epoch(1, 1)
    deploy(ledger, "f0")
    return Services(
        ledger=ledger,
        record=record,
        store=store,
        bell=lambda *_: "",
        gateway=GatewaySettings(token=SecretStr("t"), hook_secret=SecretStr("s")),
        intake=IntakeSettings(),
    )


def take(deploys: int) -> MemoryLedger:
    """One event about one object of `f0`."""
    store, ledger = Deploying(), MemoryLedger()
    store.ledger = ledger
    services = gateway(store, ledger)
    services.catalogue.current()
    store.put("inbox", "f0/a.txt", b"x")
    store.heads, store.deploys = 0, deploys
    services.receiver._take(BucketEvent(bucket="inbox", keys=("f0/a.txt",)))
    return ledger


@pytest.mark.parametrize("deploys", [0, 1, 2, 5])
def test_an_event_that_comes_during_many_deploys_is_one_job(deploys: int) -> None:
    jobs = take(deploys).jobs().jobs
    assert [(job.function, job.input.key) for job in jobs] == [("f0", "f0/a.txt")]


def test_an_event_during_deploys_without_end_is_left_to_the_listing_and_told() -> None:
    with pytest.raises(LedgerUnavailable):
        take(1000)


MIB = 2**20
PART = b"x" * 2**16


class Sender:
    """A store that sends a body in parts, `cut` of them never to come; `seen` is called before each."""

    def __init__(
        self, services: Services, parts: int, *, cut: int = 0, seen: Callable[[], None] = lambda: None
    ) -> None:
        self._app = Hooks(services)
        self._left, self._cut, self._seen = parts, cut, seen
        self.status = 0
        self.closed = False

    def send(self) -> "Sender":
        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/hooks/s3/local/s", "headers": []}
        anyio.run(self._app, scope, self._receive, self._answered)
        return self

    async def _receive(self) -> dict[str, Any]:
        self._seen()
        if self._left == self._cut:
            return {"type": "http.disconnect"}
        self._left -= 1
        return {"type": "http.request", "body": PART, "more_body": self._left > 0}

    async def _answered(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.closed = (b"connection", b"close") in message["headers"]


def held(services: Services) -> int:
    return services.receiver._bytes


def test_a_body_counts_while_it_comes_while_it_waits_and_until_it_is_done() -> None:
    services = gateway(MemoryStore(), MemoryLedger())
    counted: list[int] = []
    Sender(services, 4, seen=lambda: counted.append(held(services))).send()
    assert counted == [0, len(PART), 2 * len(PART), 3 * len(PART)]
    assert held(services) == 4 * len(PART)
    batch = services.receiver._next()
    assert batch is not None
    assert held(services) == 4 * len(PART)
    services.receiver.start()
    services.receiver.offer("s", b"{}")
    wait_until(lambda: services.receiver.backlog == 0 and held(services) == 4 * len(PART), 5)
    services.receiver.stop()


@pytest.mark.parametrize("parts", [80, 200])
def test_a_body_of_which_half_came_or_that_is_too_large_holds_nothing(parts: int) -> None:
    services = gateway(MemoryStore(), MemoryLedger())
    sender = Sender(services, parts, cut=20).send()
    assert sender.closed
    assert held(services) <= 4096


def test_bodies_without_room_hear_200_whole_and_are_dropped_and_counted() -> None:
    services = gateway(MemoryStore(), MemoryLedger())
    answers = [Sender(services, 80).send() for _ in range(10)]
    assert [(sender.status, sender.closed) for sender in answers] == [(200, False)] * 10
    assert services.receiver.backlog == 3
    assert held(services) == 3 * 80 * len(PART)
    assert services.metrics.events_dropped._value.get() == 7
    assert services.metrics.events_received._value.get() == 10


def test_a_body_without_room_holds_nothing_while_the_rest_of_it_is_read() -> None:
    services = gateway(MemoryStore(), MemoryLedger())
    for _ in range(3):
        Sender(services, 80).send()
    before, counted = held(services), []
    Sender(services, 80, seen=lambda: counted.append(held(services) - before)).send()
    assert max(counted) <= 16 * MIB - before
    assert counted[-1] == 0, "others have the room that it gave up"


def test_large_bodies_are_taken_one_by_one() -> None:
    services = gateway(MemoryStore(), MemoryLedger())
    for size in (10, 10, MIB, 10, 10, MIB, MIB):
        services.receiver.offer("s", b"x" * size)
    sizes = []
    while services.receiver.backlog:
        batch = services.receiver._next()
        assert batch is not None
        sizes.append([len(arrival.body) for arrival in batch])
    assert sizes == [[10, 10], [MIB], [10, 10], [MIB], [MIB]]


def test_the_first_thousand_records_of_a_body_are_looked_at_and_the_rest_is_told() -> None:
    def record(key: str) -> dict[str, Any]:
        return {"eventName": "s3:ObjectCreated:Put", "s3": {"bucket": {"name": "inbox"}, "object": {"key": key}}}

    whole = read(json.dumps({"Records": [record(f"{n}") for n in range(1000)]}).encode())
    assert (len(whole.events), whole.junk) == (1000, None)
    cut = read(json.dumps({"Records": [record(f"{n}") for n in range(1001)]}).encode())
    assert len(cut.events) == 1000
    assert cut.junk == "1001 records; those after 1000 are left to the next listing"
