"""What the record keeps, on the twin in memory and on the real store."""

import base64
import hashlib
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tidemill.errors import Conflict, InvalidSpec, NotFound, PreconditionFailed, TidemillError
from tidemill.ledger.api import PoolState, Token
from tidemill.models import (
    CommitOutput,
    CommitRecord,
    EpochRecord,
    FunctionRecord,
    FunctionSpec,
    JobInput,
    PoolSpec,
    RequestRecord,
)
from tidemill.models.archive import pack
from tidemill.record import Record
from tidemill.store import open_store
from tidemill.testing.memory_store import MemoryStore

JOB = "0123456789abcdef" * 2
OTHER_JOB = "f" * 32


@pytest.fixture(params=["memory", "seaweedfs", "minio"])
def store_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def record(store_kind: str, bucket: str, request: pytest.FixtureRequest) -> Record:
    """A record whose platform bucket is the test's; the users' bucket is `users-of(record)`."""
    memory = store_kind == "memory"
    found = Record(MemoryStore() if memory else open_store(request.getfixturevalue("server").settings), bucket)
    found.prepare()
    return found


def commit_of(
    record: Record,
    *outputs: CommitOutput,
    job_id: str = JOB,
    generation: int = 1,
    nonce: str = "n1",
    modified: int = 1_700_000_000,
    committed_at: float = 1_700_000_100.0,
    **more: object,
) -> CommitRecord:
    fields: dict[str, object] = {
        "job_id": job_id,
        "function": "caption",
        "revision": "r1",
        "generation": generation,
        "outcome": "succeeded",
        "nonce": nonce,
        "epoch": 1,
        "attempt": 1,
        "input": JobInput(bucket="inbox", key="cat.jpg", etag="e", size=3, last_modified=modified, hop=2),
        "outputs": outputs,
        "created_at": 1_700_000_050.0,
        "committed_at": committed_at,
    }
    return CommitRecord.model_validate(fields | more)


def inline(record: Record, key: str, body: bytes) -> CommitOutput:
    """A small output to the users' side, which is below out/ of the same bucket."""
    return CommitOutput(
        name=key.rsplit("/", 1)[-1],
        bucket=record.bucket,
        key=f"out/{key}",
        size=len(body),
        sha256=hashlib.sha256(body).hexdigest(),
        content_type="text/plain",
        inline=base64.b64encode(body).decode(),
    )


def large(record: Record, key: str, body: bytes, *, stored: bool = True) -> CommitOutput:
    """An output that lies under the attempt's prefix."""
    prefix = record.attempt_prefix(Token(JOB, 1, 1, 1, "n1"))
    if stored:
        record.store.put(record.bucket, f"{prefix}content", body)
    return inline(record, key, body).model_copy(update={"inline": None, "attempt_key": f"{prefix}content"})


def visible(record: Record) -> dict[str, bytes]:
    keys = [info.key for page in record.store.pages(record.bucket, "out/") for info in page]
    return {key.removeprefix("out/"): record.store.get(record.bucket, key) for key in keys}


# -- requests, commits, functions, pools, epoch, logs --------------------------------------------------------------


def request_of(**more: object) -> RequestRecord:
    fields: dict[str, object] = {
        "job_id": JOB,
        "function": "caption",
        "input": JobInput(bucket="tidemill", key="payloads/x/0/cat.jpg", etag="e", size=3, name="cat.jpg"),
        "fingerprint": "f1",
        "key": "cat-1",
        "created_at": 1.0,
    }
    return RequestRecord.model_validate(fields | more)


def test_the_first_request_of_a_key_counts(record: Record) -> None:
    first = record.put_request(request_of())
    assert first == request_of()
    assert record.put_request(request_of(created_at=2.0)) == first
    with pytest.raises(Conflict, match="cat-1"):
        record.put_request(request_of(fingerprint="f2"))
    assert record.get_request("caption", JOB, 1) == first
    assert record.get_request("caption", JOB, 2) is None
    record.delete_request(first)
    assert record.get_request("caption", JOB, 1) is None
    record.delete_request(first)


def test_requests_and_manifests_are_listed_by_name(record: Record) -> None:
    record.put_request(request_of())
    record.put_request(request_of(generation=2))
    record.store.put(record.bucket, "requests/caption/junk.json", b"{}")
    assert sorted(record.open_requests()) == [("caption", JOB, 1), ("caption", JOB, 2)]
    record.publish(commit_of(record))
    record.publish(commit_of(record, function="other", job_id=OTHER_JOB))
    assert sorted(record.manifests()) == [("caption", JOB, 1), ("other", OTHER_JOB, 1)]
    assert list(record.manifests("other")) == [("other", OTHER_JOB, 1)]


def test_the_first_commit_counts_and_its_writer_may_ask_again(record: Record) -> None:
    first = commit_of(record, nonce="n1")
    assert record.commit(first) == (True, first)
    assert record.commit(commit_of(record, nonce="n2", outcome="failed")) == (False, first)
    assert record.commit(commit_of(record, nonce="n1", committed_at=1_700_000_200.0)) == (True, first)
    assert record.get_commit("caption", JOB, 1) == first
    assert record.commit(commit_of(record, generation=2, nonce="n3"))[0]


def test_a_damaged_record_is_named(record: Record) -> None:
    record.store.put(record.bucket, f"commits/caption/{JOB}.1.json", b"{]")
    with pytest.raises(TidemillError, match=f"commits/caption/{JOB}.1.json") as caught:
        record.get_commit("caption", JOB, 1)
    assert caught.value.error_code == "damaged_record"


def test_payload_keys_are_safe(record: Record) -> None:
    assert record.payload_key(JOB, "../../etc/pass\nwd") == f"payloads/{JOB}/0/pass_wd"
    assert record.payload_key(JOB, "..", 3) == f"payloads/{JOB}/3/__"


def test_functions_and_pools_are_kept(record: Record) -> None:
    spec = FunctionSpec(name="caption", handler="captions:caption")
    for revision in ("r1", "r2"):
        record.put_function(FunctionRecord(spec=spec, revision=revision, deployed_at=1.0, triggers_since=1.0))
    [current] = record.functions()
    assert current.revision == "r2"
    assert record.get_function("caption") == current
    old = record.get_function("caption", "r1")
    assert old is not None
    assert old.revision == "r1"
    assert record.get_function("none") is None
    record.put_pool(PoolSpec(name="cpu"))
    assert record.pools() == [PoolState(PoolSpec(name="cpu"))]
    record.delete_pool("cpu")
    assert record.pools() == []


def test_two_who_change_a_function_at_once_undo_nothing_of_each_other(record: Record) -> None:
    spec = FunctionSpec(name="caption", handler="captions:caption")
    first = FunctionRecord(spec=spec, revision="r1", deployed_at=1.0, triggers_since=1.0)
    assert record.change_function("caption", lambda old: old) is None, "there is none"
    assert record.get_function("caption") is None
    record.put_function(first)
    seen: list[FunctionRecord | None] = []

    def change(old: FunctionRecord | None) -> FunctionRecord | None:
        seen.append(old)
        if len(seen) == 1:
            record.change_function("caption", lambda there: there and there.model_copy(update={"deleted_at": 2.0}))
        return old and old.model_copy(update={"replayed": ("inbox/",)})

    both = record.change_function("caption", change)
    assert both == first.model_copy(update={"deleted_at": 2.0, "replayed": ("inbox/",)})
    assert record.get_function("caption") == record.get_function("caption", "r1") == both
    assert seen == [first, first.model_copy(update={"deleted_at": 2.0})]


def test_a_pool_that_was_told_to_drain_drains_until_it_is_told_otherwise(record: Record) -> None:
    assert record.drain_pool("cpu", True) is None, "there is none"
    assert record.put_pool(PoolSpec(name="cpu")) == PoolState(PoolSpec(name="cpu"))
    assert record.drain_pool("cpu", True) == PoolState(PoolSpec(name="cpu"), True)
    assert record.put_pool(PoolSpec(name="cpu", slots=2)) == PoolState(PoolSpec(name="cpu", slots=2), True)
    assert record.pools() == [PoolState(PoolSpec(name="cpu", slots=2), True)]
    assert record.drain_pool("cpu", False) == PoolState(PoolSpec(name="cpu", slots=2))
    assert record.store.get(record.bucket, "pools/cpu.json") == PoolSpec(name="cpu", slots=2).model_dump_json().encode()
    record.drain_pool("cpu", True)
    record.delete_pool("cpu")
    assert not record.put_pool(PoolSpec(name="cpu")).draining, "a new one under an old name"


@pytest.mark.parametrize("body", [b"", b'{"name": "cp', b"\xff\xfe{}", b"[]", b'{"name": "cpu", "from_the_future": 1}'])
def test_a_damaged_record_is_left_out_of_listings_and_told_until_it_is_mended(record: Record, body: bytes) -> None:
    for name in ("caption", "ocr"):
        spec = FunctionSpec(name=name, handler="h:run")
        record.put_function(FunctionRecord(spec=spec, revision="r1", deployed_at=1.0, triggers_since=1.0))
    record.put_pool(PoolSpec(name="cpu"))
    record.put_pool(PoolSpec(name="gpu"))
    damaged = {"functions/ocr/current.json", "pools/cpu.json"}
    for key in damaged:
        record.store.put(record.bucket, key, body)
    assert [function.name for function in record.functions()] == ["caption"]
    assert record.pools() == [PoolState(PoolSpec(name="gpu"))]
    assert set(record.damaged()) == damaged
    assert set(record.look_again([*damaged, "pools/gpu.json", "elsewhere"])) == damaged
    with pytest.raises(TidemillError, match="damaged"):
        record.drain_pool("cpu", True)
    record.put_pool(PoolSpec(name="cpu", slots=2))
    assert PoolState(PoolSpec(name="cpu", slots=2)) in record.pools()
    record.store.delete(record.bucket, "functions/ocr/current.json")
    assert record.look_again(damaged) == {} == record.damaged()


def test_a_generation_is_published_although_the_manifest_of_the_one_before_is_damaged(record: Record) -> None:
    record.store.put(record.bucket, f"manifests/caption/{JOB}.1.json", b"torn")
    commit = commit_of(record, inline(record, "cat", b"2"), generation=2)
    record.commit(commit)
    assert record.publish(commit).state == "succeeded"
    assert visible(record) == {"cat": b"2"}


def test_the_epoch_moves_only_under_its_reader(record: Record) -> None:
    assert record.read_epoch() is None
    first = EpochRecord(epoch=1, sequence=1, written_at=1.0)
    etag = record.write_epoch(first, None)
    assert record.read_epoch() == (first, etag)
    assert record.write_epoch(first, None) == etag  # the same writer, whose first answer was lost
    second = EpochRecord(epoch=1, sequence=2, written_at=2.0)
    record.write_epoch(second, etag)
    for stale in (etag, None):
        with pytest.raises(PreconditionFailed):
            record.write_epoch(EpochRecord(epoch=2, sequence=0, written_at=3.0), stale)
    found = record.read_epoch()
    assert found is not None
    assert found[0] == second
    record.store.delete(record.bucket, "epoch")
    with pytest.raises(PreconditionFailed):
        record.write_epoch(first, etag)


def test_logs_are_kept_as_they_are(record: Record) -> None:
    assert record.get_log("caption", JOB, 1) is None
    record.put_log("caption", JOB, 1, b"\xff line\n")
    assert record.get_log("caption", JOB, 1) == b"\xff line\n"


# -- code ----------------------------------------------------------------------------------------------------------


def archive_of(path: Path, *members: tarfile.TarInfo, body: bytes = b"x") -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            member.size = len(body) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(body) if member.isreg() else None)
    return path


def test_code_comes_back_as_it_was_packed(record: Record, tmp_path: Path) -> None:
    (tmp_path / "code" / "sub").mkdir(parents=True)
    (tmp_path / "code" / "main.py").write_text("print(1)")
    (tmp_path / "code" / "sub" / "run.sh").write_text("true")
    (tmp_path / "code" / "sub" / "run.sh").chmod(0o755)
    with (tmp_path / "code.tar.gz").open("wb") as file:
        pack(tmp_path / "code", file)
    sha256, size = record.put_code(tmp_path / "code.tar.gz")
    assert record.put_code(tmp_path / "code.tar.gz") == (sha256, size)
    assert sha256 == hashlib.sha256((tmp_path / "code.tar.gz").read_bytes()).hexdigest()
    record.fetch_code(sha256, tmp_path / "out")
    assert sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*")) == [
        "main.py",
        "sub",
        "sub/run.sh",
    ]
    assert os.access(tmp_path / "out" / "sub" / "run.sh", os.X_OK)
    with pytest.raises(NotFound):
        record.fetch_code("0" * 64, tmp_path / "none")


def test_code_that_is_not_what_its_name_says_is_refused(record: Record, tmp_path: Path) -> None:
    record.store.put(record.bucket, f"functions/code/{'0' * 64}.tar.gz", b"other")
    with pytest.raises(InvalidSpec, match="other content"):
        record.fetch_code("0" * 64, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


# -- publication ---------------------------------------------------------------------------------------------------


def test_outputs_carry_who_made_them_and_the_manifest_tells_all(record: Record) -> None:
    commit = commit_of(record, inline(record, "cat/a.txt", b"A"), large(record, "cat/b.txt", b"B" * 100))
    manifest = record.publish(commit)
    assert visible(record) == {"cat/a.txt": b"A", "cat/b.txt": b"B" * 100}
    assert (manifest.state, [(o.key, o.size, o.name) for o in manifest.outputs]) == (
        "succeeded",
        [("out/cat/a.txt", 1, "a.txt"), ("out/cat/b.txt", 100, "b.txt")],
    )
    for key in ("out/cat/a.txt", "out/cat/b.txt"):
        info = record.store.head(record.bucket, key)
        assert info is not None
        assert info.content_type == "text/plain"
        assert info.metadata["tidemill-job"] == JOB
        assert info.metadata["tidemill-generation"] == "1"
        assert info.metadata["tidemill-hop"] == "3"
    assert record.get_manifest("caption", JOB, 1) == manifest
    assert record.publish(commit) == manifest


def test_a_published_job_is_not_published_again(record: Record) -> None:
    commit = commit_of(record, inline(record, "a.txt", b"A"))
    manifest = record.publish(commit)
    record.store.delete(record.bucket, "out/a.txt")  # the user took the result
    assert record.publish(commit) == manifest
    assert visible(record) == {}


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
def test_other_ends_publish_nothing_but_the_manifest(record: Record, outcome: str) -> None:
    error = {"code": "function_failed", "message": "no"}
    commit = commit_of(record, inline(record, "a.txt", b"A"), outcome=outcome, error=error)
    manifest = record.publish(commit)
    assert (manifest.state, manifest.outputs) == (outcome, ())
    assert manifest.error is not None
    assert manifest.error.code == "function_failed"
    assert visible(record) == {}


def make_output(kind: str, record: Record, key: str, body: bytes) -> CommitOutput:
    return inline(record, key, body) if kind == "inline" else large(record, key, body)


@pytest.mark.parametrize("kind", ["inline", "large"])
def test_a_foreign_object_is_kept_under_fail(record: Record, kind: str) -> None:
    record.store.put(record.bucket, "out/b.txt", b"mine")
    commit = commit_of(record, make_output(kind, record, "a.txt", b"A"), make_output(kind, record, "b.txt", b"B"))
    manifest = record.publish(commit)
    assert visible(record) == {"b.txt": b"mine"}
    assert (manifest.state, manifest.outputs, manifest.left) == ("failed", (), ())
    assert manifest.error is not None
    assert manifest.error.code == "output_conflict"
    assert "out/b.txt" in manifest.error.message
    assert manifest.error.hint


class Dying(Exception):
    """The finisher was killed."""


def written_until(record: Record, commit: CommitRecord, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish a commit, and die before this output is written."""
    put = record.store.put

    def dies(bucket: str, name: str, body: bytes, **more: Any) -> Any:
        if name == f"out/{key}":
            raise Dying
        return put(bucket, name, body, **more)

    with monkeypatch.context() as patch:
        patch.setattr(record.store, "put", dies)
        with pytest.raises(Dying):
            record.publish(commit)


def test_a_conflict_found_after_a_finisher_died_half_way_names_what_lies_there(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.publish(commit_of(record, inline(record, "a.txt", b"of generation 1"), inline(record, "z.txt", b"Z")))
    names = ("a.txt", "b.txt", "c.txt", "d.txt")
    commit = commit_of(record, *(inline(record, name, name.encode()) for name in names), generation=2)
    written_until(record, commit, "d.txt", monkeypatch)
    for name in ("b.txt", "d.txt"):
        record.store.put(record.bucket, f"out/{name}", b"mine")
    manifest = record.publish(commit)
    assert (manifest.state, manifest.outputs) == ("failed", ())
    lie = {"out/a.txt": len("a.txt"), "out/c.txt": len("c.txt"), "out/z.txt": 1}
    assert {output.key: output.size for output in manifest.left} == lie


@pytest.mark.parametrize("on_conflict", ["overwrite", "suffix"])
def test_a_publication_that_stops_names_what_a_finisher_before_it_wrote_under_any_rule(
    record: Record, on_conflict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.store.put(record.bucket, "out/c.txt", b"mine")
    outputs = inline(record, "a.txt", b"A"), large(record, "b.txt", b"B"), inline(record, "c.txt", b"C")
    commit = commit_of(record, *outputs, inline(record, "d.txt", b"D"), on_conflict=on_conflict)
    written_until(record, commit, "d.txt", monkeypatch)
    record.store.delete(record.bucket, "out/b.txt")
    assert outputs[1].attempt_key is not None
    record.store.delete(record.bucket, outputs[1].attempt_key)
    manifest = record.publish(commit)
    assert manifest.error is not None
    assert manifest.error.code == "output_lost"
    kept = "out/c-1.txt" if on_conflict == "suffix" else "out/c.txt"
    assert [output.key for output in manifest.left] == ["out/a.txt", kept]


@pytest.mark.parametrize("kind", ["inline", "large"])
def test_a_foreign_object_is_replaced_under_overwrite(record: Record, kind: str) -> None:
    record.store.put(record.bucket, "out/a.txt", b"mine")
    manifest = record.publish(commit_of(record, make_output(kind, record, "a.txt", b"A"), on_conflict="overwrite"))
    assert (manifest.state, visible(record)) == ("succeeded", {"a.txt": b"A"})


@pytest.mark.parametrize("kind", ["inline", "large"])
def test_a_foreign_object_gets_a_numbered_neighbour_under_suffix(record: Record, kind: str) -> None:
    for key in ("out/a.txt", "out/a-1.txt"):
        record.store.put(record.bucket, key, b"mine")
    commit = commit_of(record, make_output(kind, record, "a.txt", b"A"), on_conflict="suffix")
    manifest = record.publish(commit)
    assert visible(record) == {"a.txt": b"mine", "a-1.txt": b"mine", "a-2.txt": b"A"}
    assert [(output.key, output.name) for output in manifest.outputs] == [("out/a-2.txt", "a.txt")]
    # Another finisher, who knows of no manifest, finds the same object; also when the way has become free.
    record.store.delete(record.bucket, f"manifests/caption/{JOB}.1.json")
    record.store.delete(record.bucket, "out/a-1.txt")
    assert record.publish(commit) == manifest
    assert visible(record) == {"a.txt": b"mine", "a-2.txt": b"A"}


def test_outputs_that_step_aside_do_not_take_each_others_place(record: Record) -> None:
    record.store.put(record.bucket, "out/a.txt", b"mine")
    commit = commit_of(record, inline(record, "a.txt", b"A"), inline(record, "a-1.txt", b"B"), on_conflict="suffix")
    manifest = record.publish(commit)
    record.store.delete(record.bucket, f"manifests/caption/{JOB}.1.json")
    assert record.publish(commit) == manifest
    assert visible(record) == {"a.txt": b"mine", "a-1.txt": b"A", "a-1-1.txt": b"B"}


@pytest.mark.parametrize("kind", ["inline", "large"])
def test_a_newer_generation_replaces_and_tells_what_is_left(record: Record, kind: str) -> None:
    old = commit_of(record, inline(record, "a.txt", b"old a"), inline(record, "b.txt", b"old b"))
    record.publish(old)
    manifest = record.publish(commit_of(record, make_output(kind, record, "a.txt", b"new a"), generation=2))
    assert visible(record) == {"a.txt": b"new a", "b.txt": b"old b"}
    assert [output.key for output in manifest.outputs] == ["out/a.txt"]
    assert [output.key for output in manifest.left] == ["out/b.txt"]
    third = record.publish(commit_of(record, generation=3, outcome="failed"))
    assert sorted(output.key for output in third.left) == ["out/a.txt", "out/b.txt"]


@pytest.mark.parametrize("kind", ["inline", "large"])
def test_a_late_finisher_of_an_older_generation_changes_nothing(record: Record, kind: str) -> None:
    old = commit_of(record, make_output(kind, record, "a.txt", b"old"))
    record.publish(old)
    record.publish(commit_of(record, inline(record, "a.txt", b"new"), generation=2))
    record.store.delete(record.bucket, f"manifests/caption/{JOB}.1.json")
    late = record.publish(old)
    assert visible(record) == {"a.txt": b"new"}
    assert late.state == "cancelled"
    assert late.error is not None
    assert late.error.code == "superseded"


@pytest.mark.parametrize("on_conflict", ["fail", "suffix", "overwrite"])
@pytest.mark.parametrize("kind", ["inline", "large"])
def test_a_changed_input_replaces_its_own_results_and_never_the_other_way(
    record: Record, kind: str, on_conflict: str
) -> None:
    first = commit_of(record, inline(record, "a.txt", b"old"), on_conflict=on_conflict)
    record.publish(first)
    newer = commit_of(
        record,
        make_output(kind, record, "a.txt", b"new"),
        job_id=OTHER_JOB,
        modified=1_700_000_001,
        on_conflict=on_conflict,
    )
    assert record.publish(newer).state == "succeeded"
    assert visible(record) == {"a.txt": b"new"}
    record.store.delete(record.bucket, f"manifests/caption/{JOB}.1.json")
    assert record.publish(first).state == "cancelled"
    assert visible(record) == {"a.txt": b"new"}


@pytest.mark.parametrize("kind", ["inline", "large"])
def test_of_two_jobs_of_one_input_the_one_claimed_last_counts_whatever_the_agents_clocks_say(
    record: Record, kind: str
) -> None:
    # Two calls that name one object, or two contents within one second; the second agent's clock is an hour behind.
    record.publish(commit_of(record, inline(record, "a.txt", b"1"), claimed_at=1_700_000_010.1))
    later = commit_of(
        record,
        make_output(kind, record, "a.txt", b"2"),
        job_id=OTHER_JOB,
        claimed_at=1_700_000_010.2,
        committed_at=1_700_000_100.0 - 3600,
    )
    assert record.publish(later).state == "succeeded"
    assert visible(record) == {"a.txt": b"2"}
    # A run that was claimed before it and ends after it comes too late.
    slow = commit_of(
        record,
        make_output(kind, record, "a.txt", b"0"),
        job_id="a" * 32,
        claimed_at=1_700_000_005.0,
        committed_at=1_700_009_999.0,
    )
    assert record.publish(slow).state == "cancelled"
    assert visible(record) == {"a.txt": b"2"}


@pytest.mark.parametrize("kind", ["inline", "large"])
def test_a_version_that_was_named_replaces_the_result_of_a_newer_content_until_one_comes(
    record: Record, kind: str
) -> None:
    def content(job_id: str, body: bytes, at: int, *, named: bool = False) -> CommitRecord:
        source = JobInput(bucket="inbox", key="cat.jpg", etag="e", size=3, last_modified=at, pinned=named)
        claimed_at = 1_700_000_050.5 if named else at + 0.5
        output = make_output(kind, record, "a.txt", body)
        return commit_of(record, output, job_id=job_id, input=source, claimed_at=claimed_at)

    record.publish(content(JOB, b"of the second", 1_700_000_020))
    assert record.publish(content(OTHER_JOB, b"of the first", 1_700_000_000, named=True)).state == "succeeded"
    assert visible(record) == {"a.txt": b"of the first"}
    assert record.publish(content("a" * 32, b"of the third", 1_700_000_060)).state == "succeeded"
    assert visible(record) == {"a.txt": b"of the third"}


@pytest.mark.parametrize(("claimed_at", "state"), [(1_700_000_100.001, "succeeded"), (1_700_000_099.999, "cancelled")])
def test_outputs_that_were_published_before_commits_knew_their_claim_have_a_place_in_the_order(
    record: Record, claimed_at: float, state: str
) -> None:
    record.publish(commit_of(record, inline(record, "a.txt", b"old")))
    info = record.store.head(record.bucket, "out/a.txt")
    assert info is not None
    assert info.metadata["tidemill-order"] == "001700000000-001700000100000"
    new = commit_of(record, inline(record, "a.txt", b"new"), job_id=OTHER_JOB, claimed_at=claimed_at)
    assert record.publish(new).state == state


def test_results_of_another_function_or_input_are_foreign(record: Record) -> None:
    record.publish(commit_of(record, inline(record, "a.txt", b"A")))
    other = commit_of(record, inline(record, "a.txt", b"B"), job_id=OTHER_JOB, function="other")
    assert record.publish(other).state == "failed"
    moved = JobInput(bucket="inbox", key="dog.jpg", etag="e", size=3, last_modified=1_700_000_900)
    assert record.publish(commit_of(record, inline(record, "a.txt", b"B"), job_id="e" * 32, input=moved)).error
    assert visible(record) == {"a.txt": b"A"}


def test_a_bucket_that_is_gone_fails_the_job_with_the_remedy(record: Record) -> None:
    output = inline(record, "a.txt", b"A").model_copy(update={"bucket": "no-such-bucket"})
    for job_id, outputs in ((JOB, (output,)), (OTHER_JOB, (output, inline(record, "b.txt", b"B")))):
        manifest = record.publish(commit_of(record, *outputs, job_id=job_id))
        assert manifest.state == "failed"
        assert manifest.error is not None
        assert manifest.error.code == "output_refused"
        assert "no-such-bucket" in (manifest.error.hint or "")


def test_content_that_is_gone_fails_the_job(record: Record) -> None:
    manifest = record.publish(commit_of(record, large(record, "a.txt", b"A", stored=False)))
    assert manifest.error is not None
    assert manifest.error.code == "output_lost"
