"""Events are hints: lost, doubled, late, out of order, torn, forged, junk. Whatever comes, each object is one job."""

import json
from urllib.parse import quote_plus

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from tidemill.models import FunctionRecord, FunctionSpec
from tidemill.record import Record
from tidemill.settings import GatewaySettings, IntakeSettings
from tidemill.testing import MemoryLedger, MemoryStore
from tidemill_gateway.intake.webhook import Arrival
from tidemill_gateway.services import Services

_SPEC = FunctionSpec.model_validate(
    {"name": "echo", "handler": "w:f", "trigger": [{"bucket": "inbox", "prefix": "in/"}]}
)
_NAMES = ["a.txt", "b c.txt", "d+e.txt", "f%2Fg.txt", "ä/日本.txt", ".hidden", "x.tmp", "empty", "sub/", "100%"]
_WANTED = {f"in/{name}" for name in _NAMES} - {"in/.hidden", "in/x.tmp", "in/empty", "in/sub/"}


def _minio(bucket: str, key: str) -> bytes:
    thing = {"bucket": {"name": bucket}, "object": {"key": quote_plus(key), "size": 1}}
    record = {"eventName": "s3:ObjectCreated:Put", "s3": thing}
    return json.dumps({"Key": f"{bucket}/{key}", "Records": [record]}).encode()


def _aws(bucket: str, key: str) -> bytes:
    thing = {"bucket": {"name": bucket}, "object": {"key": quote_plus(key, safe="/")}}
    records = [{"eventName": "ObjectCreated:Put", "s3": thing}, {"eventName": 5}, {"eventName": "ObjectRemoved:Delete"}]
    return json.dumps({"Records": records}).encode()


def _versitygw(bucket: str, key: str) -> bytes:
    holder = {"name": bucket, "arn": f"arn:aws:s3:::{bucket}/{key}"}
    thing = {"bucket": holder, "object": {"key": key, "eTag": '"0"'}}
    return json.dumps(
        {"Records": [{"eventSource": "aws:s3", "eventName": "s3:ObjectCreated:Put", "s3": thing}]}
    ).encode()


def _seaweed(bucket: str, key: str) -> bytes:
    message = {"new_entry": {"name": key.rsplit("/", 1)[-1], "attributes": {}}}
    return json.dumps({"event_type": "create", "key": f"/buckets/{bucket}/{key}", "message": message}).encode()


_DIALECTS = st.sampled_from([_minio, _aws, _versitygw, _seaweed])
_HONEST = st.builds(lambda say, name: say("inbox", f"in/{name}"), _DIALECTS, st.sampled_from(_NAMES))
_FORGED = st.builds(
    lambda say, bucket, key: say(bucket, key),
    _DIALECTS,
    st.sampled_from(["inbox", "other", "tidemill", "no such bucket", "", "../x"]),
    st.text(max_size=20)
    | st.sampled_from(["in/gone", "in//a.txt", "in/../in/a.txt", "canary/x/y", "in/" + "x" * 2000]),
)
_TORN = st.builds(lambda body, at: body[:at], _HONEST, st.integers(0, 150))
_SPOILT = st.builds(
    lambda body, at, bad: body[:at] + bad + body[at:], _HONEST, st.integers(0, 150), st.binary(max_size=5)
)
_BODIES = _HONEST | _FORGED | _TORN | _SPOILT | st.binary(max_size=60)
# Objects are written at any time between the bodies: an event may come before its object, or long after.
_STEPS = st.lists(_BODIES | st.sampled_from(_NAMES), max_size=40)


def _services() -> Services:
    store = MemoryStore(clock=lambda: 1000.0)
    record = Record(store)
    record.prepare()
    store.ensure_bucket("inbox")
    ledger = MemoryLedger()
    ledger.begin_epoch(1, 0)
    ledger.put_function(FunctionRecord(spec=_SPEC, revision="r", deployed_at=0.0, triggers_since=0.0))
    return Services(
        ledger=ledger,
        record=record,
        store=store,
        bell=lambda *_: "",
        gateway=GatewaySettings(token=SecretStr("t"), hook_secret=SecretStr("s")),
        intake=IntakeSettings(),
    )


def _put(services: Services, name: str) -> None:
    services.store.put("inbox", f"in/{name}", b"" if name in ("empty", "sub/") else name.encode())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_STEPS, st.data())
def test_whatever_bodies_come_each_object_is_one_job_after_the_next_listing(
    steps: list[bytes | str], data: st.DataObject
) -> None:
    services = _services()
    written: set[str] = set()
    waiting: list[Arrival] = []
    for step in steps:
        if isinstance(step, str):
            if step not in written:
                _put(services, step)
                written.add(step)
        else:
            waiting.append(Arrival("local", step, 0.0))
        if waiting and data.draw(st.booleans()):
            services.receiver._drain(waiting)
            waiting = []
    before = [job.input.key for job in services.ledger.jobs(limit=1000).jobs]
    services.reconciler.round()
    services.receiver._drain(waiting)
    services.reconciler.round()

    jobs = [job.input.key for job in services.ledger.jobs(limit=1000).jobs]
    assert len(before) == len(set(before))
    assert sorted(jobs) == sorted({f"in/{name}" for name in written} & _WANTED)
    assert set(services.store.buckets()) == {"tidemill", "inbox"}


def test_five_megabytes_of_records_are_read_and_the_objects_in_them_found() -> None:
    services = _services()
    _put(services, "a.txt")
    one = json.loads(_aws("inbox", "in/a.txt"))["Records"][0]
    padding = [{**one, "padding": "x" * 1000}] * 5000
    body = json.dumps({"Records": [*padding, one]}).encode()
    assert len(body) > 5 * 2**20
    assert services.receiver.offer("local", body)
    services.receiver._drain([Arrival("local", body, 0.0)])

    assert [job.input.key for job in services.ledger.jobs().jobs] == ["in/a.txt"]
