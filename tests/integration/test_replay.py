"""Replay: objects that were there before their trigger, and jobs that failed; durable once it was accepted."""

import time
from collections.abc import Iterator

import pytest

from tests.support import S3, wait_until
from tests.support.gateway import TOKEN, Lab, free_socket, run_gateway
from tidemill import Client
from tidemill.errors import InvalidSpec, NotFound
from tidemill.models import JobError
from tidemill_gateway.catalogue import table_of
from tidemill_gateway.replay import Replays


@pytest.fixture(params=["seaweedfs", "minio"])
def store_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def lab(server: S3, redis_url: str, bucket: str) -> Iterator[Lab]:
    with free_socket() as sock, run_gateway(server, redis_url, bucket, sock) as found:
        yield found


@pytest.fixture
def client(lab: Lab) -> Iterator[Client]:
    with Client(lab.url, TOKEN) as found:
        yield found


def _deploy(lab: Lab, inbox: str, **more: object) -> None:
    trigger = {"bucket": inbox, "prefix": "in/", "suffix": ".txt"}
    lab.deploy({"name": "echo", "handler": "work:run", "trigger": trigger, **more}).raise_for_status()


def _old(lab: Lab, inbox: str, names: list[str]) -> None:
    """Write objects that are older than any trigger that comes after this."""
    lab.store.ensure_bucket(inbox)
    for name in names:
        lab.store.put(inbox, name, b"" if "empty" in name else name.encode())
    newest = max(info.last_modified for page in lab.store.pages(inbox) for info in page)
    wait_until(lambda: time.time() >= newest + 1.1)


def _keys(lab: Lab) -> list[str]:
    return sorted(str(job["input"]["key"]) for job in lab.jobs())  # type: ignore[index]


_OLD = ["in/a.txt", "in/2025/b.txt", "in/2025/c.txt", "in/.hidden.txt", "in/empty.txt", "in/d.png", "beside/e.txt"]


def test_old_objects_start_nothing_until_they_are_replayed_and_then_once(lab: Lab, client: Client, bucket: str) -> None:
    inbox = f"{bucket}-in"
    _old(lab, inbox, _OLD)
    _deploy(lab, inbox)
    lab.services.reconciler.round()
    assert lab.jobs() == []

    looked = client.replay("echo", dry_run=True)
    assert lab.jobs() == []
    lab.services.reconciler.round()
    assert lab.jobs() == []
    wanted = ["in/2025/b.txt", "in/2025/c.txt", "in/a.txt"]
    assert (looked["found"], looked["started"], looked["known"], looked["complete"]) == (5, 3, 0, True)
    assert looked["ignored"] == {"hidden name": 1, "empty": 1}
    assert sorted(looked["examples"]) == [f"{inbox}/{key}" for key in wanted]

    done = client.replay("echo")
    assert (done["started"], done["known"]) == (3, 0)
    assert _keys(lab) == wanted
    again = client.replay("echo")
    assert (again["started"], again["known"]) == (0, 3)
    lab.services.reconciler.round()
    assert _keys(lab) == wanted


def test_a_prefix_narrows_it_and_one_outside_the_triggers_is_refused(lab: Lab, client: Client, bucket: str) -> None:
    inbox = f"{bucket}-in"
    _old(lab, inbox, _OLD)
    _deploy(lab, inbox)
    assert client.replay("echo", prefix="in/2025/b")["started"] == 1
    lab.services.reconciler.round()
    assert _keys(lab) == ["in/2025/b.txt"]
    assert client.replay("echo", prefix="i", dry_run=True)["found"] == 5
    with pytest.raises(InvalidSpec, match="no trigger below 'out/'"):
        client.replay("echo", prefix="out/")
    with pytest.raises(NotFound):
        client.replay("nobody")


def test_what_a_replay_accepted_is_found_again_by_a_ledger_that_lost_everything(
    lab: Lab, client: Client, bucket: str
) -> None:
    inbox = f"{bucket}-in"
    _old(lab, inbox, _OLD)
    _deploy(lab, inbox)
    client.replay("echo", prefix="in/2025/")
    first = sorted(str(job["id"]) for job in lab.jobs())
    lab.ledger._connection.command("FLUSHDB")  # type: ignore[attr-defined]
    lab.ledger.begin_epoch(2, 0)
    for record in lab.services.record.functions():
        lab.ledger.put_function(record)
    lab.services.reconciler.turn()  # by itself: the epoch is another one

    assert sorted(str(job["id"]) for job in lab.jobs()) == first
    assert len(first) == 2


def test_a_replay_that_ran_out_of_time_is_done_by_the_listing(lab: Lab, client: Client, bucket: str) -> None:
    inbox = f"{bucket}-in"
    _old(lab, inbox, [f"in/{n}.txt" for n in range(5)])
    _deploy(lab, inbox)
    services = lab.services
    hasty = Replays(
        services.ledger,
        services.record,
        services.store,
        services.deployer,
        services.submitter,
        services.calls,
        services.pressure,
        services.metrics,
        clock=iter(range(0, 10_000, 100)).__next__,
    )
    done = hasty.objects(services.owner, "echo")
    assert done.complete is False
    services.reconciler.turn()
    assert len(_keys(lab)) == 5


def test_a_replay_outlives_a_deploy_and_ends_with_its_trigger(lab: Lab, client: Client, bucket: str) -> None:
    inbox = f"{bucket}-in"
    _old(lab, inbox, ["in/a.txt"])
    _deploy(lab, inbox)
    client.replay("echo")
    _deploy(lab, inbox, limits={"timeout": "5s"})
    [record] = table_of(lab.ledger.functions()).functions.values()
    assert record.replayed == (f"{inbox}/in/",)
    other = {"bucket": inbox, "prefix": "other/"}
    _deploy(lab, inbox, trigger=other)
    [record] = table_of(lab.ledger.functions()).functions.values()
    assert record.replayed == ()


def test_failed_jobs_get_their_next_generation_also_when_the_ledger_forgot_them(
    lab: Lab, client: Client, bucket: str
) -> None:
    inbox = f"{bucket}-in"
    _deploy(lab, inbox)
    for name in ("bad.txt", "good.txt", "late.txt", "changed.txt", "gone.txt", "x/bad.txt"):
        lab.store.put(inbox, f"in/{name}", name.encode())
    lab.services.reconciler.round()
    ids = {str(job["input"]["key"]): str(job["id"]) for job in lab.jobs()}  # type: ignore[index]
    for key, job_id in ids.items():
        if "late" not in key:
            lab.end(job_id, error=None if "good" in key else JobError(code="oom", message="no memory"))
    lab.store.put(inbox, "in/changed.txt", b"another content")
    lab.store.delete(inbox, "in/gone.txt")
    payload = client.submit("echo", b"not an object of a bucket")
    lab.end(payload.id, error=JobError(code="oom"))
    assert lab.ledger.expire(time.time() + 3600) == 6
    lab.services.reconciler.round()

    looked = client.replay("echo", failed_only=True, dry_run=True)
    assert (looked["found"], looked["started"]) == (4, 4)
    narrow = client.replay("echo", failed_only=True, prefix="in/x/")
    assert (narrow["found"], narrow["started"], narrow["examples"]) == (1, 1, [ids["in/x/bad.txt"]])
    done = client.replay("echo", failed_only=True)
    assert (done["found"], done["started"]) == (3, 1)
    assert done["refused"] == {"input_changed": 1, "input_gone": 1}
    for key in ("in/bad.txt", "in/x/bad.txt"):
        job = client.job(ids[key]).data
        assert (job["generation"], job["state"]) == (2, "queued")
    assert client.replay("echo", failed_only=True)["started"] == 0


def test_failed_jobs_are_done_in_several_requests_when_there_are_many(lab: Lab, bucket: str) -> None:
    inbox = f"{bucket}-in"
    _deploy(lab, inbox)
    for n in range(6):
        lab.store.put(inbox, f"in/{n}.txt", b"x%d" % n)
    lab.services.reconciler.round()
    for job in lab.jobs():
        lab.end(str(job["id"]), error=JobError(code="oom"))
    services = lab.services
    hasty = Replays(
        services.ledger,
        services.record,
        services.store,
        services.deployer,
        services.submitter,
        services.calls,
        services.pressure,
        services.metrics,
        clock=iter(range(0, 10_000, 100)).__next__,
        chunk=4,
    )
    first = hasty.failed(services.owner, "echo")
    assert (first.started, first.complete) == (4, False)
    second = hasty.failed(services.owner, "echo", cursor=first.cursor)
    assert second.started == 2
    assert {job["generation"] for job in lab.jobs()} == {2}


def test_the_body_of_a_replay_is_checked(lab: Lab, subtests: pytest.Subtests) -> None:
    _deploy(lab, "replay-in")
    for body in ({"prefix": 5}, {"dry_run": "yes"}, {"failed_only": 1}, {"failed_only": True, "cursor": "x"}):
        with subtests.test(body=body):
            answer = lab.http.post("/api/v1/functions/echo/replay", json=body)
            assert answer.status_code == 422
