"""The judge sees each kind of violation, and nothing where all is well."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from dataclasses import replace

import pytest
import redis

from tests.faults.checker import Checker, Verdict
from tests.faults.load import IN, OUT, Entry
from tests.faults.schedule import Drop
from tidemill.ledger import connect
from tidemill.ledger.api import Claim, NewJob
from tidemill.models import CommitOutput, FunctionRecord, FunctionSpec, JobError, object_job_id
from tidemill.record import Record
from tidemill.record.ending import End, finish, output_key
from tidemill.testing import MemoryStore
from tidemill_gateway.intake.submit import input_of

FUNCTION = FunctionRecord(
    spec=FunctionSpec.model_validate(
        {
            "name": "lab",
            "handler": "lab:Lab",
            "trigger": [{"bucket": IN, "prefix": "in/"}],
            "output": {"bucket": OUT, "prefix": "out/"},
        }
    ),
    revision="r1",
    deployed_at=0.0,
    triggers_since=0.0,
)


class World:
    """A store, a ledger and a journal in which some inputs were dropped and finished as they should."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.ledger = connect(url)
        self.ledger.begin_epoch(1, 0)
        self.record = Record(MemoryStore(), sleep=lambda seconds: None)
        self.record.prepare()
        self.store = self.record.store
        for bucket in (IN, OUT):
            self.store.ensure_bucket(bucket)
        self.journal: list[Entry] = []
        self.writes: dict[str, list[tuple[float, str]]] = {}

    def drop(self, *, want: str = "small") -> Entry:
        number = len(self.journal)
        body = json.dumps({"n": number, "want": want, "seconds": 0}).encode()
        entry = Entry(Drop(number, 0.0, "put", want, 0.1), f"in/{number}.json", [body], 1, accepted_at=1.0)
        self.store.put(IN, entry.key, body)
        self.journal.append(entry)
        return entry

    def submit(self, entry: Entry) -> str:
        info = self.store.head(IN, entry.key)
        assert info is not None
        job_id = object_job_id("lab", "local", IN, entry.key, info.etag, info.size, info.last_modified)
        self.ledger.submit(NewJob(id=job_id, function="lab", input=input_of(info), revision="r1"))
        return job_id

    def claim(self, entry: Entry) -> Claim:
        claim = self.ledger.seize(self.submit(entry), "tester", 30.0)
        assert claim is not None
        return claim

    def run(self, entry: Entry, nonce: str = "n", failed: bool = False) -> str:
        claim = self.claim(entry)
        body = json.dumps({"n": entry.drop.number, "input": entry.digest, "nonce": nonce}).encode()
        bucket, key = output_key(FUNCTION.spec, claim.job, "result.json")
        output = CommitOutput(
            name="result.json",
            bucket=bucket,
            key=key,
            size=len(body),
            sha256=hashlib.sha256(body).hexdigest(),
            inline=base64.b64encode(body).decode(),
        )
        error = JobError(code="function_failed", message="no such luck")
        end = End("failed", error) if failed else End("succeeded", outputs=(output,))
        finish(self.ledger, self.record, claim, FUNCTION, end)
        return claim.token.job_id

    def judge(self) -> Verdict:
        return Checker(self.record, self.ledger, self.url, self.journal).judge(self.writes)

    def found(self) -> set[str]:
        return {kind for kind, said in self.judge().found.items() if said}


@pytest.fixture
def world(redis_url: str) -> World:
    made = World(redis_url)
    for _ in range(3):
        made.run(made.drop())
    return made


def test_a_world_in_which_all_went_well_is_clean(world: World) -> None:
    world.run(world.drop(want="fail"), failed=True)
    verdict = world.judge()
    assert verdict.clean, verdict.found
    assert verdict.facts["succeeded"] == 3
    assert verdict.facts["failed"] == 1


def test_an_input_that_nobody_knows_is_lost(world: World) -> None:
    world.drop()
    assert world.found() == {"lost"}


def test_an_object_that_the_store_itself_lost_is_not_our_fault(world: World) -> None:
    entry = world.drop()
    world.store.delete(IN, entry.key)
    verdict = world.judge()
    assert verdict.clean
    assert verdict.facts["lost by the store"] == 1


def test_a_job_that_still_waits_is_stuck(world: World) -> None:
    world.submit(world.drop())
    assert world.found() == {"stuck"}


def test_a_job_that_should_have_succeeded_is_wrong_when_it_failed(world: World) -> None:
    world.run(world.drop(), failed=True)
    assert world.found() == {"wrong"}


def test_a_job_that_should_have_failed_is_wrong_when_it_succeeded(world: World) -> None:
    world.run(world.drop(want="fail"))
    assert "wrong" in world.found()


def test_a_result_that_is_gone_is_torn(world: World) -> None:
    world.store.delete(OUT, "out/0.json/result.json")
    assert world.found() == {"torn"}


def test_a_result_with_other_bytes_is_torn(world: World) -> None:
    world.store.put(OUT, "out/0.json/result.json", json.dumps({"nonce": "x", "input": "?"}).encode())
    assert world.found() == {"torn"}


def test_an_output_that_no_manifest_names_is_torn(world: World) -> None:
    world.store.put(OUT, "out/0.json/more.json", b"?")
    assert world.found() == {"torn"}


def test_a_commit_record_of_another_run_is_torn(world: World) -> None:
    function, job_id, generation = next(iter(world.record.commits()))
    commit = world.record.get_commit(function, job_id, generation)
    assert commit is not None
    other = commit.outputs[0].model_copy(update={"sha256": "0" * 64})
    body = commit.model_copy(update={"outputs": (other,)}).model_dump_json().encode()
    world.store.put(world.record.bucket, f"commits/{function}/{job_id}.{generation}.json", body)
    assert world.found() == {"torn"}


def test_two_contents_under_one_key_are_doubled(world: World) -> None:
    world.writes["/buckets/lab-out/out/0.json/result.json"] = [(1.0, "a"), (2.0, "b")]
    assert world.found() == {"doubled"}


def test_the_same_content_written_again_is_not_doubled(world: World) -> None:
    world.writes["/buckets/lab-out/out/0.json/result.json"] = [(1.0, "a"), (2.0, "a")]
    assert world.judge().clean


def test_a_job_of_an_input_that_nobody_dropped_is_doubled(world: World) -> None:
    entry = world.drop()
    world.run(entry)
    world.journal.remove(entry)
    assert world.found() == {"doubled"}


def test_a_ledger_that_says_another_end_than_the_record_is_untrue(world: World) -> None:
    function, job_id, generation = next(iter(world.record.manifests()))
    manifest = world.record.get_manifest(function, job_id, generation)
    assert manifest is not None
    body = manifest.model_copy(update={"state": "cancelled", "outputs": ()}).model_dump_json().encode()
    world.store.put(world.record.bucket, f"manifests/{function}/{job_id}.{generation}.json", body)
    assert "untrue" in world.found()


@pytest.mark.parametrize("key", ["tm:leases", "tm:running:near-1", "tm:released:near-1", "tm:queue:lab"])
def test_what_a_ledger_still_holds_when_nothing_runs_is_leaked(world: World, key: str) -> None:
    with redis.Redis.from_url(world.url) as client:
        if "running" in key:
            client.sadd(key, "job")
        else:
            client.zadd(key, {"job": 1})
    assert world.found() == {"leaked"}


def test_a_finished_job_that_the_ledger_has_forgotten_is_untrue_while_its_input_is_there(world: World) -> None:
    entry = world.drop()
    job_id = world.run(entry)
    world.ledger.expire(time.time() + 60)
    world.ledger.unsettle([job_id])
    assert world.found() == {"untrue"}
    world.store.delete(IN, entry.key)
    entry.deleted = True
    assert world.found() == set(), "nobody will ask for it again"


def test_a_right_call_that_was_refused_is_told(world: World) -> None:
    world.journal[0] = replace(world.journal[0], trouble="404 there is no function lab")
    assert world.found() == {"refused"}
