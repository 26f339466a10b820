"""Replay over the twins in memory: what cannot be had holds up nothing else."""

from collections.abc import Iterator

from pydantic import SecretStr

from tidemill.errors import NotAllowed
from tidemill.models import FunctionRecord, FunctionSpec
from tidemill.record import Record
from tidemill.settings import GatewaySettings, IntakeSettings
from tidemill.store import ObjectInfo
from tidemill.testing import MemoryLedger, MemoryStore
from tidemill_gateway.services import Services


class Guarded(MemoryStore):
    """A store that lists an object and refuses to show it."""

    def head(self, bucket: str, key: str, version_id: str | None = None) -> ObjectInfo | None:
        if key == "in/2-denied":
            raise NotAllowed("HEAD: 403")
        return super().head(bucket, key, version_id)

    def pages(self, bucket: str, prefix: str = "", start_after: str | None = None) -> Iterator[list[ObjectInfo]]:
        for page in super().pages(bucket, prefix, start_after):
            yield from ([info] for info in page)


def test_an_object_that_the_store_refuses_to_show_is_counted_and_the_others_are_replayed() -> None:
    store, ledger = Guarded(), MemoryLedger()
    record = Record(store)
    record.prepare()
    store.ensure_bucket("inbox")
    ledger.begin_epoch(1, 0)
    spec = FunctionSpec.model_validate(
        {"name": "echo", "handler": "w:f", "trigger": [{"bucket": "inbox", "prefix": "in/"}]}
    )
    function = FunctionRecord(spec=spec, revision="r", deployed_at=0.0, triggers_since=2e10)
    record.put_function(function)
    ledger.put_function(function)
    for key in ("in/1", "in/2-denied", "in/3"):
        store.put("inbox", key, b"x")
    settings = GatewaySettings(token=SecretStr("t"))
    services = Services(
        ledger=ledger, record=record, store=store, bell=lambda *_: "", gateway=settings, intake=IntakeSettings()
    )
    done = services.replays.objects(services.owner, "echo")
    assert (done.found, done.started, done.ignored, done.complete) == (3, 2, {"not readable": 1}, True)
    assert {job.input.key for job in ledger.iter_open()} == {"in/1", "in/3"}
    assert [(bucket, key, reason) for bucket, key, reason, _ in ledger.ignored()] == [
        ("inbox", "in/2-denied", "not readable: HEAD: 403")
    ]
