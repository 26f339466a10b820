"""Events while functions are deployed."""

import pytest
from pydantic import SecretStr

from tidemill.errors import LedgerUnavailable
from tidemill.models import BucketEvent, FunctionRecord, FunctionSpec
from tidemill.record import Record
from tidemill.settings import GatewaySettings, IntakeSettings
from tidemill.store import ObjectInfo
from tidemill.testing import MemoryLedger, MemoryStore
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


def take(deploys: int) -> MemoryLedger:
    """One event about one object of `f0`."""
    store, ledger = Deploying(), MemoryLedger()
    store.ledger = ledger
    record = Record(store)
    record.prepare()
    store.ensure_bucket("inbox")
    ledger.begin_epoch(1, 1)
    deploy(ledger, "f0")
    services = Services(
        ledger=ledger,
        record=record,
        store=store,
        bell=lambda *_: "",
        gateway=GatewaySettings(token=SecretStr("t"), hook_secret=SecretStr("s")),
        intake=IntakeSettings(),
    )
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
