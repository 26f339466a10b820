"""From a dropped file to its job: with events, without them, with both, doubled, forged and too many."""

import json
import threading
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import S3, run_seaweed, wait_until
from tests.support.gateway import AGENT, HOOK_SECRET, Lab, free_socket, run_gateway
from tidemill.doorbell import TASK, make_app, queue_name
from tidemill.errors import LedgerUnavailable
from tidemill.ledger.api import AgentReport
from tidemill.local.seaweed import Webhook
from tidemill.models import object_job_id
from tidemill_gateway.intake.reconciler import Reconciler

_NAMES = [
    "a b.txt",
    "a+b.txt",
    "a%2Fb.txt",
    "100%.txt",
    "%",
    "+",
    "q?x=1&y;#.txt",
    "\"quoted\" 'name'.txt",
    "日本 ä.txt",
    unicodedata.normalize("NFC", "é.txt"),
    unicodedata.normalize("NFD", "é.txt"),
    "emoji😀.bin",
    "line\nbreak.txt",
    "tab\there",
    "<&>.xml",
    "semi;colon,comma",
    "x" * 200,
    "/".join(["deep"] * 40) + "/file",
    "UPPER.TXT",
    "~tilde",
    "{key}/{name}",
    "two..dots",
    "trailing space ",
    "back\\slash",
]
_IGNORED = {
    ".hidden": "hidden",
    "a.tmp": "temporary",
    "b.part": "temporary",
    "Thumbs.db": "temporary",
    "empty": "empty",
}


@pytest.fixture(params=["seaweedfs", "minio"])
def store_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def lab(server: S3, redis_url: str, bucket: str) -> Iterator[Lab]:
    """A gateway whose store sends no events."""
    with free_socket() as sock, run_gateway(server, redis_url, bucket, sock) as found:
        yield found


def _deploy(lab: Lab, inbox: str, **more: object) -> None:
    spec = {"name": "echo", "handler": "work:run", "trigger": {"bucket": inbox, "prefix": "in/"}, **more}
    lab.deploy(spec).raise_for_status()


def _drop(lab: Lab, inbox: str, names: list[str]) -> set[str]:
    """Write these files and give the keys that the store then lists: those that it took, as it spells them."""
    for name in names:
        lab.store.put(inbox, f"in/{name}", b"" if name == "empty" else name.encode())
    return {info.key for page in lab.store.pages(inbox, "in/") for info in page if not info.key.endswith("/")}


def _keys(lab: Lab) -> list[str]:
    return sorted(str(job["input"]["key"]) for job in lab.jobs())  # type: ignore[index]


def test_hostile_names_found_by_listing_are_one_job_each_however_often_it_lists(lab: Lab, bucket: str) -> None:
    inbox = f"{bucket}-in"
    _deploy(lab, inbox)
    listed = _drop(lab, inbox, [*_NAMES, *_IGNORED])
    lab.services.reconciler.round()
    first = _keys(lab)
    lab.services.reconciler.round()

    assert first == sorted(key for key in listed if key.removeprefix("in/") not in _IGNORED)
    assert len(first) >= len(_NAMES) - 2
    assert _keys(lab) == first
    reasons = {row["key"]: row["reason"] for row in lab.http.get("/api/v1/ignored").json()["ignored"]}
    assert {key.removeprefix("in/") for key in reasons} == set(_IGNORED)
    assert all(reasons[f"in/{name}"].startswith(said) for name, said in _IGNORED.items())


def test_events_of_a_real_store_and_listings_at_once_give_one_job_each(redis_url: str, tmp_path: Path) -> None:
    with free_socket() as sock:
        hook = Webhook(f"http://127.0.0.1:{sock.getsockname()[1]}/hooks/s3/local", HOOK_SECRET)
        with run_seaweed(tmp_path, webhook=hook) as server:
            s3 = S3(server.endpoint, server.access_key, server.secret_key, server.region)
            with run_gateway(s3, redis_url, "platform", sock) as lab:
                _deploy(lab, "inbox")
                lab.services.receiver.start()
                listed = _drop(lab, "inbox", [*_NAMES, *_IGNORED])
                wanted = sorted(key for key in listed if key.removeprefix("in/") not in _IGNORED)
                wait_until(lambda: _keys(lab) == wanted, 15)
                lab.services.reconciler.start()
                more = _drop(lab, "inbox", [f"{n}.bin" for n in range(100)])
                wanted = sorted(key for key in more if key.removeprefix("in/") not in _IGNORED)
                wait_until(lambda: len(lab.jobs()) >= len(wanted), 15)
                lab.services.reconciler.stop(5)
                lab.services.reconciler.round()

                assert _keys(lab) == wanted


def test_an_overwritten_object_is_a_job_of_its_own_and_a_tag_is_none(lab: Lab, bucket: str) -> None:
    inbox = f"{bucket}-in"
    _deploy(lab, inbox)
    lab.services.receiver.start()
    _drop(lab, inbox, ["a.txt"])
    _event(lab, inbox, "in/a.txt")
    wait_until(lambda: len(lab.jobs()) == 1)
    _event(lab, inbox, "in/a.txt")
    lab.store.put(inbox, "in/a.txt", b"other content")
    _event(lab, inbox, "in/a.txt")

    wait_until(lambda: len(lab.jobs()) == 2)
    lab.services.reconciler.round()
    assert len(lab.jobs()) == 2


def test_an_empty_object_becomes_a_job_when_it_has_content(lab: Lab, bucket: str) -> None:
    inbox = f"{bucket}-in"
    _deploy(lab, inbox)
    lab.store.put(inbox, "in/slow.txt", b"")
    lab.services.reconciler.round()
    before = lab.jobs()
    lab.store.put(inbox, "in/slow.txt", b"content")
    lab.services.reconciler.round()

    assert before == []
    assert _keys(lab) == ["in/slow.txt"]


def test_objects_older_than_the_trigger_and_beside_it_are_no_jobs(lab: Lab, bucket: str) -> None:
    inbox = f"{bucket}-in"
    lab.store.ensure_bucket(inbox)
    lab.store.put(inbox, "in/old.txt", b"x")
    old = lab.store.head(inbox, "in/old.txt")
    assert old is not None
    # The trigger begins in a later second of the store.
    wait_until(lambda: time.time() >= old.last_modified + 1.1)
    _deploy(lab, inbox, trigger={"bucket": inbox, "prefix": "in/", "suffix": ".txt", "max_size": 100})
    lab.services.receiver.start()
    for name, content in {"new.txt": b"x", "large.txt": b"x" * 101, "other.bin": b"x"}.items():
        lab.store.put(inbox, f"in/{name}", content)
    lab.store.put(inbox, "out/side.txt", b"x")
    _event(lab, inbox, "in/old.txt")
    _event(lab, inbox, "out/side.txt")
    lab.services.reconciler.round()

    assert _keys(lab) == ["in/new.txt"]
    ignored = lab.http.get("/api/v1/ignored").json()["ignored"]
    assert [(row["key"], "too large" in row["reason"]) for row in ignored] == [("in/large.txt", True)]


def test_a_result_that_went_round_too_often_starts_nothing(lab: Lab, bucket: str) -> None:
    inbox = f"{bucket}-in"
    _deploy(lab, inbox)
    lab.store.put(inbox, "in/8.txt", b"x", metadata={"tidemill-hop": "8"})
    lab.store.put(inbox, "in/9.txt", b"x", metadata={"tidemill-hop": "9"})
    lab.services.reconciler.round()
    lab.services.reconciler.round()

    [job] = lab.jobs()
    assert (job["input"]["key"], job["input"]["hop"]) == ("in/8.txt", 8)  # type: ignore[index]
    [row] = lab.http.get("/api/v1/ignored").json()["ignored"]
    assert (row["key"], "loop guard" in row["reason"]) == ("in/9.txt", True)


def test_forged_and_junk_bodies_hear_200_and_do_no_harm(lab: Lab, bucket: str, subtests: pytest.Subtests) -> None:
    inbox = f"{bucket}-in"
    _deploy(lab, inbox)
    lab.services.receiver.start()
    _drop(lab, inbox, ["real.txt"])
    with httpx.Client(base_url=lab.url, headers={"Authorization": f"Bearer {HOOK_SECRET}"}, timeout=30) as http:
        for body in (b"{", b"\xff\xfe", b"[]", b"", b"5" * 10_000, b'{"Records": [1]}', b"x" * (7 * 2**20)):
            with subtests.test(body=body[:10]):
                assert http.post("/hooks/s3/local", content=body).status_code == 200
        for key in ("in/gone.txt", "in/..", "in/../real.txt", "in/" + "x" * 2000, "in/\0", "in//real.txt"):
            _event(lab, inbox, key)
        _event(lab, "no-such-bucket-here", "in/a")
    _event(lab, inbox, "in/real.txt")

    wait_until(lambda: _keys(lab) == ["in/real.txt"])
    wait_until(lambda: len(lab.ledger.junk()) == 6)
    assert all(entry["reason"] for entry in lab.ledger.junk())


def test_events_need_the_secret_in_the_header_or_in_the_path(lab: Lab, subtests: pytest.Subtests) -> None:
    with httpx.Client(base_url=lab.url) as http:
        for headers, path, status in (
            ({}, "/hooks/s3/local", 403),
            ({"Authorization": "Bearer wrong"}, "/hooks/s3/local", 403),
            ({}, "/hooks/s3/local/wrong", 403),
            ({"Authorization": f"Bearer {HOOK_SECRET}"}, "/hooks/s3/other", 404),
            ({"Authorization": f"Bearer {HOOK_SECRET}"}, "/hooks/s3/local", 200),
            ({"Authorization": HOOK_SECRET}, "/hooks/s3/local", 200),
            ({}, f"/hooks/s3/local/{HOOK_SECRET}", 200),
        ):
            with subtests.test(path=path, headers=headers):
                assert http.post(path, headers=headers, content=b"{}").status_code == status
                assert http.get(path, headers=headers).status_code == status


def test_invented_methods_are_refused_and_leave_one_label(lab: Lab) -> None:
    headers = {"Authorization": f"Bearer {HOOK_SECRET}"}
    for path in ("/hooks/s3/local", "/healthz"):
        for number in range(20):  # these the parser of HTTP knows to be none
            assert lab.http.request(f"M{number}", path, headers=headers).status_code == 400
        for method in ("PROPFIND", "PURGE", "MERGE", "SUBSCRIBE"):
            assert lab.http.request(method, path, headers=headers).status_code == 405
    metrics = lab.http.get("/metrics").text
    assert 'method="other"' in metrics
    assert 'method="M1"' not in metrics
    assert 'method="PURGE"' not in metrics


def test_a_full_queue_still_answers_and_the_listing_makes_up_for_it(
    server: S3, redis_url: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with free_socket() as sock, run_gateway(server, redis_url, bucket, sock) as lab:
        monkeypatch.setattr(lab.services.receiver, "_limit", 2)
        inbox = f"{bucket}-in"
        _deploy(lab, inbox)
        _drop(lab, inbox, [f"{n}.txt" for n in range(5)])
        for n in range(5):
            _event(lab, inbox, f"in/{n}.txt")
        assert lab.services.receiver.backlog == 2
        lab.services.receiver.start()
        wait_until(lambda: len(lab.jobs()) == 2)
        lab.services.reconciler.round()

        assert len(lab.jobs()) == 5


def test_a_grant_sends_the_job_on_and_rings_the_agent(lab: Lab, bucket: str, redis_url: str) -> None:
    inbox = f"{bucket}-in"
    _deploy(lab, inbox)
    lab.ledger.heartbeat(AgentReport(AGENT, "pool", 4))
    lab.ledger.set_grants("echo", {AGENT: 1})
    _drop(lab, inbox, ["a.txt"])
    lab.services.receiver.start()
    _event(lab, inbox, "in/a.txt")

    [job] = wait_until(lab.jobs)
    assert job["state"] == "released"
    app = make_app(redis_url)
    with app.connection() as connection, connection.SimpleQueue(queue_name("pool", AGENT)) as queue:
        message = queue.get(timeout=5)
        assert (message.headers["task"], message.headers["argsrepr"]) == (TASK, job["id"])
        message.ack()


def test_an_event_is_taken_by_the_functions_that_another_gateway_deployed(lab: Lab, bucket: str) -> None:
    """This gateway's own copy of them is an old one, with the same bucket in it."""
    inbox = f"{bucket}-in"
    _deploy(lab, inbox)
    lab.services.receiver.start()
    _drop(lab, inbox, ["first.txt"])
    _event(lab, inbox, "in/first.txt")
    wait_until(lab.jobs)
    old = lab.services.record.get_function("echo")
    assert old is not None
    trigger = old.spec.trigger[0].model_copy(update={"prefix": "other/"})
    beside = old.spec.model_copy(update={"name": "beside", "trigger": (trigger,)})
    lab.ledger.put_function(old.model_copy(update={"revision": "r2"}))
    lab.ledger.put_function(old.model_copy(update={"spec": beside}))

    _drop(lab, inbox, ["second.txt"])
    lab.store.put(inbox, "other/third.txt", b"third")
    for key in ("in/second.txt", "other/third.txt"):
        _event(lab, inbox, key)
    wait_until(lambda: len(lab.jobs()) == 3)
    jobs = {job["input"]["key"]: job for job in lab.http.get("/api/v1/jobs").json()["jobs"]}
    assert (jobs["in/second.txt"]["function"], jobs["in/second.txt"]["revision"]) == ("echo", "r2")
    assert jobs["other/third.txt"]["function"] == "beside"


def test_an_event_and_a_listing_compute_the_same_identity(lab: Lab, bucket: str) -> None:
    inbox = f"{bucket}-in"
    _deploy(lab, inbox)
    lab.services.receiver.start()
    content = b"x" * (12 * 2**20)  # written in parts: the ETag is no digest then
    lab.store.put(inbox, "in/big.bin", content)
    _event(lab, inbox, "in/big.bin")
    [job] = wait_until(lab.jobs)
    [info] = next(iter(lab.store.pages(inbox, "in/")))

    listed = object_job_id("echo", "local", inbox, info.key, info.etag, info.size, info.last_modified)
    assert job["id"] == listed


def test_a_request_that_never_reached_the_ledger_is_submitted_by_the_listing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    _deploy(lab, "requests-in")
    ledger = lab.services.submitter._ledger
    with monkeypatch.context() as patch:
        patch.setattr(type(ledger), "submit", _dies)
        answer = lab.http.post("/api/v1/functions/echo/jobs", files={"file": ("x", b"x")})
    assert answer.status_code == 503
    assert lab.jobs() == []
    later = _reconciler_of(lab, seconds_later=60)
    later.round()
    [job] = lab.jobs()
    lab.end(str(job["id"]))
    later.round()

    assert [(found["id"], found["state"]) for found in lab.jobs()] == [(job["id"], "succeeded")]


def test_a_retry_is_not_taken_for_the_finished_generation_before_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    _deploy(lab, "requests-in")
    job_id = lab.http.post("/api/v1/functions/echo/jobs", files={"file": ("x", b"x")}).json()["id"]
    lab.end(job_id)
    with monkeypatch.context() as patch:
        patch.setattr(type(lab.services.submitter._ledger), "submit", _dies)
        lab.http.post(f"/api/v1/jobs/{job_id}/retry")
    assert lab.http.get(f"/api/v1/jobs/{job_id}").json()["state"] == "succeeded"
    _reconciler_of(lab, seconds_later=60).round()

    job = lab.http.get(f"/api/v1/jobs/{job_id}").json()
    assert (job["generation"], job["state"]) == (2, "queued")


def test_only_one_gateway_lists(lab: Lab, bucket: str) -> None:
    inbox = f"{bucket}-in"
    _deploy(lab, inbox)
    lab.services.reconciler.round()
    other = _reconciler_of(lab, holder="gateway-other")
    _drop(lab, inbox, ["a.txt"])
    pause_s = other.round()

    assert lab.jobs() == []
    assert pause_s >= 1
    lab.ledger.resign("reconciler", lab.services.holder)
    other.round()
    assert _keys(lab) == ["in/a.txt"]


def test_a_bucket_that_went_does_not_keep_the_others_waiting(lab: Lab, bucket: str) -> None:
    gone, inbox = f"{bucket}-a", f"{bucket}-b"
    _deploy(lab, gone, trigger=[{"bucket": gone, "prefix": "in/"}, {"bucket": inbox, "prefix": "in/"}])
    _drop(lab, inbox, ["a.txt"])
    record = lab.services.catalogue.current().functions["echo"]
    missing = record.spec.trigger[0].model_copy(update={"bucket": "no-such-bucket-here"})
    spec = record.spec.model_copy(update={"trigger": (missing, record.spec.trigger[1])})
    lab.ledger.put_function(record.model_copy(update={"spec": spec}))
    lab.services.reconciler.round()

    assert _keys(lab) == ["in/a.txt"]


def test_events_that_come_while_others_are_taken_answer_at_once(lab: Lab, bucket: str) -> None:
    inbox = f"{bucket}-in"
    _deploy(lab, inbox)
    _drop(lab, inbox, [f"{n}.txt" for n in range(60)])
    lab.services.receiver.start()
    senders = [
        threading.Thread(target=lambda k=k: [_event(lab, inbox, f"in/{n}.txt") for n in range(60)])  # type: ignore[misc]
        for k in range(3)
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()

    wait_until(lambda: len(lab.jobs()) == 60)
    wait_until(lambda: lab.services.receiver.backlog == 0)
    assert len(lab.jobs()) == 60


def _event(lab: Lab, bucket: str, key: str) -> None:
    body = {"event_type": "create", "key": f"/buckets/{bucket}/{key}", "message": {"new_entry": {"name": key}}}
    answer = lab.http.post(
        "/hooks/s3/local",
        content=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {HOOK_SECRET}"},
    )
    assert answer.status_code == 200


def _dies(*_: object, **__: object) -> None:
    raise LedgerUnavailable("as if the process had died here")


def _reconciler_of(lab: Lab, holder: str | None = None, seconds_later: float = 0.0) -> Reconciler:
    services = lab.services
    return Reconciler(
        services.ledger,
        services.record,
        services.store,
        services.catalogue,
        services.submitter,
        services.pressure,
        services.metrics,
        holder=holder or services.holder,
        interval_s=0.2,
        clock=lambda: time.time() + seconds_later,
    )
