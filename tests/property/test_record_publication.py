"""Two finishers of one job, interleaved and killed between any two calls of the store: still one result.

Each finisher runs in a thread of its own, which stops before every call of the store; hypothesis says who may go on,
and which calls die, get lost before the store, or lose their answer after it. All runs are thereby repeatable.
"""

import base64
import hashlib
import threading
from collections.abc import Callable
from typing import Any, Literal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemill.errors import ServiceUnavailable, StoreUnavailable
from tidemill.models import CommitOutput, CommitRecord, JobInput, Manifest
from tidemill.record import Record
from tidemill.store import Store
from tidemill.testing.memory_store import MemoryStore

JOB = "ab" * 16
CALLS = ("head", "get", "put", "copy", "bucket_exists")
Fault = Literal["dies before", "dies after", "lost before", "lost after"]


class Died(Exception):
    """The process of a finisher was killed."""


class Stepped:
    """A store that hands out one call at a time, and breaks the calls that it was told to break."""

    def __init__(self, inner: MemoryStore, faults: dict[int, Fault]) -> None:
        self._inner = inner
        self._faults = faults
        self._calls = 0
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self.over = False

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        return self._gated(call) if name in CALLS else call

    def _gated(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def gated(*args: Any, **options: Any) -> Any:
            self._stopped.release()
            self._go.acquire()
            fault = self._faults.get(self._calls)
            self._calls += 1
            if fault == "dies before":
                raise Died
            if fault == "lost before":
                raise StoreUnavailable("no way to the store")
            result = call(*args, **options)
            if fault == "dies after":
                raise Died
            if fault == "lost after":
                raise StoreUnavailable("the answer was lost")
            return result

        return gated

    def start(self, work: Callable[[], object]) -> None:
        def run() -> None:
            try:
                work()
            except (Died, ServiceUnavailable):
                return
            finally:
                self.over = True
                self._stopped.release()

        threading.Thread(target=run, daemon=True).start()
        self._stopped.acquire()

    def step(self) -> None:
        self._go.release()
        self._stopped.acquire()


def output(name: str, body: bytes, *, attempt_key: str | None = None) -> CommitOutput:
    return CommitOutput(
        name=name,
        bucket="outbox",
        key=f"cat/{name}",
        size=len(body),
        sha256=hashlib.sha256(body).hexdigest(),
        inline=None if attempt_key else base64.b64encode(body).decode(),
        attempt_key=attempt_key,
    )


def commit_of(
    store: MemoryStore,
    nonce: str,
    kinds: list[str],
    *,
    on_conflict: str = "fail",
    job_id: str = JOB,
    generation: int = 1,
    modified: int = 1_700_000_000,
) -> CommitRecord:
    """An attempt's commit; every content names the attempt, so that a mixture shows."""
    outputs = []
    for number, kind in enumerate(kinds):
        name, body = f"{number}.txt", f"{nonce} {number}".encode()
        attempt_key = f"attempts/{job_id}.{generation}/1-1-{nonce}/{number}" if kind == "large" else None
        if attempt_key:
            store.put("tidemill", attempt_key, body)
        outputs.append(output(name, body, attempt_key=attempt_key))
    return CommitRecord.model_validate(
        {
            "job_id": job_id,
            "function": "caption",
            "revision": "r",
            "generation": generation,
            "outcome": "succeeded",
            "nonce": nonce,
            "epoch": 1,
            "attempt": 1,
            "input": JobInput(bucket="inbox", key="cat.jpg", etag="e", size=1, last_modified=modified),
            "outputs": tuple(outputs),
            "on_conflict": on_conflict,
            "created_at": 1_700_000_001.0,
            "committed_at": 1_700_000_002.0,
        }
    )


def record_of(store: Store) -> Record:
    return Record(store, sleep=lambda seconds: None)


def fresh_store() -> MemoryStore:
    store = MemoryStore(clock=lambda: 1_700_000_000.0)
    for bucket in ("tidemill", "outbox"):
        store.ensure_bucket(bucket)
    return store


def visible(store: MemoryStore) -> dict[str, bytes]:
    return {info.key: store.get("outbox", info.key) for page in store.pages("outbox") for info in page}


def check_complete(store: MemoryStore, manifest: Manifest, commit: CommitRecord) -> None:
    """What a manifest tells is there, and is the committed attempt's."""
    assert [item.name for item in manifest.outputs] == [item.name for item in commit.outputs]
    for number, item in enumerate(manifest.outputs):
        assert store.get(item.bucket, item.key) == f"{commit.nonce} {number}".encode()


schedules = st.lists(st.integers(0, 1), max_size=60)
faults = st.dictionaries(
    st.integers(0, 25), st.sampled_from(["dies before", "dies after", "lost before", "lost after"]), max_size=2
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kinds=st.lists(st.sampled_from(["inline", "large"]), min_size=1, max_size=3),
    on_conflict=st.sampled_from(["fail", "overwrite", "suffix"]),
    before=st.sampled_from(["nothing", "older content", "foreign"]),
    schedule=schedules,
    broken=st.tuples(faults, faults),
)
def test_two_attempts_that_both_finish_lead_to_one_result(
    kinds: list[str],
    on_conflict: str,
    before: str,
    schedule: list[int],
    broken: tuple[dict[int, Fault], dict[int, Fault]],
) -> None:
    store = fresh_store()
    if before == "older content":
        old = commit_of(store, "old", ["inline"], job_id="cd" * 16, modified=1_600_000_000)
        record_of(store).publish(old)
    if before == "foreign":
        store.put("outbox", "cat/0.txt", b"mine")
    commits = [commit_of(store, nonce, kinds, on_conflict=on_conflict) for nonce in ("one", "two")]
    finishers = [Stepped(store, faults) for faults in broken]

    def finish(commit: CommitRecord, through: Stepped) -> Callable[[], object]:
        record = record_of(through)
        return lambda: record.publish(record.commit(commit)[1])

    for commit, finisher in zip(commits, finishers, strict=True):
        finisher.start(finish(commit, finisher))
    plain = record_of(store)
    turns = iter(schedule)
    while alive := [finisher for finisher in finishers if not finisher.over]:
        alive[next(turns, 0) % len(alive)].step()
        manifest, decided = plain.get_manifest("caption", JOB, 1), plain.get_commit("caption", JOB, 1)
        if manifest is not None and manifest.state == "succeeded":
            assert decided is not None
            check_complete(store, manifest, decided)

    # Whoever comes after the dead ends what they began.
    stored = plain.commit(commits[0])[1]
    manifest = plain.publish(stored)
    assert plain.publish(stored) == manifest == plain.get_manifest("caption", JOB, 1)
    mine = {key: body for key, body in visible(store).items() if body != b"mine"}
    if before == "foreign" and on_conflict == "fail":
        assert (manifest.state, visible(store)) == ("failed", {"cat/0.txt": b"mine"})
        return
    assert manifest.state == "succeeded"
    check_complete(store, manifest, stored)
    assert sorted(mine) == sorted(item.key for item in manifest.outputs)
    assert {body.split()[0].decode() for body in mine.values()} == {stored.nonce}
    if before == "foreign" and on_conflict == "suffix":
        assert store.get("outbox", "cat/0.txt") == b"mine"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    first=st.integers(1, 3),
    second=st.integers(1, 3),
    on_conflict=st.sampled_from(["fail", "overwrite", "suffix"]),
    foreign=st.booleans(),
    earlier=st.integers(0, 3),
    head_start=st.integers(0, 12),
    schedule=schedules,
)
def test_a_slow_finisher_of_an_older_generation_never_shows_its_outputs_again(
    first: int, second: int, on_conflict: str, foreign: bool, earlier: int, head_start: int, schedule: list[int]
) -> None:
    if foreign and on_conflict == "fail":
        on_conflict = "suffix"
    store = fresh_store()
    if foreign:
        store.put("outbox", "cat/0.txt", b"mine")
    plain = record_of(store)
    # The first generation's files make the second one replace by ETag, which the slow finisher then has in hand.
    plain.publish(commit_of(store, "first", ["inline"] * earlier, on_conflict=on_conflict))
    old = commit_of(store, "old", ["inline"] * first, on_conflict=on_conflict, generation=2)
    new = commit_of(store, "new", ["inline"] * second, on_conflict=on_conflict, generation=3)

    slow, fast = Stepped(store, {}), Stepped(store, {})
    slow.start(lambda: record_of(slow).publish(old))
    for _ in range(head_start):
        if not slow.over:
            slow.step()
    plain.publish(old)  # somebody else ends it, and only then the job may be tried again
    fast.start(lambda: record_of(fast).publish(new))
    turns = iter(schedule)
    while alive := [finisher for finisher in (slow, fast) if not finisher.over]:
        alive[next(turns, 0) % len(alive)].step()

    manifest = plain.get_manifest("caption", JOB, 3)
    assert manifest is not None
    check_complete(store, manifest, new)
    left = {item.key for item in manifest.left}
    current = {item.key for item in manifest.outputs}
    mine = {key: body for key, body in visible(store).items() if body != b"mine"}
    assert set(mine) == left | current
    assert all(body.startswith(b"new") == (key in current) for key, body in mine.items())


def test_the_first_manifest_stays_when_finishers_come_to_different_ends() -> None:
    store = fresh_store()
    store.put("outbox", "cat/0.txt", b"mine")
    commit = commit_of(store, "one", ["inline"])
    slow = Stepped(store, {})
    ends: list[Manifest] = []
    slow.start(lambda: ends.append(record_of(slow).publish(commit)))
    for _ in ("look for a manifest", "create the output in vain", "see the foreign object"):
        slow.step()
    store.delete("outbox", "cat/0.txt")  # the user makes room before the conflict is written down
    manifest = record_of(store).publish(commit)
    assert manifest.state == "succeeded"
    while not slow.over:
        slow.step()
    assert ends == [manifest]
    assert record_of(store).get_manifest("caption", JOB, 1) == manifest


def test_an_output_whose_answer_was_lost_is_found_written() -> None:
    store = fresh_store()
    commit = commit_of(store, "one", ["inline", "large"], on_conflict="overwrite")
    through = Stepped(store, {1: "lost after", 4: "lost after"})  # the calls that write the outputs
    ends: list[Manifest] = []
    through.start(lambda: ends.append(record_of(through).publish(commit)))
    while not through.over:
        through.step()
    assert [manifest.state for manifest in ends] == ["succeeded"]
