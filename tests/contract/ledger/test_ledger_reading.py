"""Lists, counts, the backlog, waiting, the stream, the settled set, logs and notes."""

import threading
from dataclasses import replace

import pytest

from tests.contract.ledger.world import World
from tests.support import wait_until
from tidemill.errors import InvalidSpec
from tidemill.models import JobError, JobState, Placement


def listed(world: World, limit: int, **filters: object) -> list[str]:
    """All ids that a listing gives, page by page."""
    found: list[str] = []
    cursor = None
    while True:
        page = world.ledger.jobs(limit=limit, cursor=cursor, **filters)  # type: ignore[arg-type]
        assert len(page.jobs) <= limit
        found += [job.id for job in page.jobs]
        cursor = page.cursor
        if cursor is None:
            return found


def test_lists_are_newest_first_in_pages_of_any_size(world: World) -> None:
    ids = [world.submit() for _ in range(7)][::-1]
    for limit in (1, 2, 3, 7, 8):
        assert listed(world, limit) == ids


def test_a_listing_neither_skips_nor_repeats_while_jobs_come_and_change(world: World) -> None:
    old = [world.submit() for _ in range(9)]
    world.finish(world.claim(old[0]).token)
    page = world.ledger.jobs(limit=3)
    found = [job.id for job in page.jobs]
    while page.cursor is not None:
        world.submit()
        world.finish(world.claim(found[-1]).token)
        reborn = world.new(int(old[0], 16) % 10)
        world.ledger.submit(reborn)
        world.ledger.expire(0.0)
        page = world.ledger.jobs(limit=3, cursor=page.cursor)
        found += [job.id for job in page.jobs]
    assert found == old[::-1]


def test_a_retried_job_keeps_its_place_in_listings(world: World) -> None:
    job = world.new()
    world.ledger.submit(job)
    world.finish(world.claim(job.id).token, "failed")
    newer = world.submit()
    assert world.ledger.submit(replace(job, generation=2)).created
    assert listed(world, 1) == [newer, job.id]


def test_a_listing_goes_on_behind_a_cursor_whose_job_was_forgotten(world: World) -> None:
    ids = [world.submit() for _ in range(4)]
    world.finish(world.claim(ids[2]).token)
    page = world.ledger.jobs(limit=2)
    assert [job.id for job in page.jobs] == [ids[3], ids[2]]
    assert world.ledger.expire(9e9) == 1
    assert [job.id for job in world.ledger.jobs(cursor=page.cursor).jobs] == [ids[1], ids[0]]


def test_lists_are_filtered_by_state_function_owner_reason_and_time(world: World) -> None:
    failed = world.claimed(owner="anna")
    world.finish(failed.token, "failed", error=JobError(code="timeout", message="too long"))
    other = world.submit(function="other")
    job = world.ledger.job(other)
    assert job is not None
    assert listed(world, 1, state=JobState.failed) == [failed.job.id]
    assert listed(world, 1, reason="timeout") == [failed.job.id]
    assert listed(world, 1, reason="oom") == []
    assert listed(world, 1, owner="anna") == [failed.job.id]
    assert listed(world, 1, owner="default") == [other]
    assert listed(world, 1, function="other") == [other]
    assert listed(world, 1, function="other", state=JobState.running) == []
    assert listed(world, 1, since=job.created_at) == [other]
    assert listed(world, 1, since=job.created_at + 9) == []
    found = world.ledger.job(failed.job.id)
    assert found is not None and found.error is not None and found.error.message == "too long"


def test_a_rare_job_is_found_behind_more_than_two_chunks_of_others(world: World) -> None:
    rare = world.submit(function="rare")
    for _ in range(1001):
        world.submit()
    assert [job.id for job in world.ledger.jobs(function="rare", limit=5).jobs] == [rare]
    assert len(list(world.ledger.iter_open())) == 1002


@pytest.mark.parametrize("cursor", ["", "x", "12", "a-b", "²-x"])
def test_a_text_that_is_no_cursor_is_refused(world: World, cursor: str) -> None:
    with pytest.raises(InvalidSpec):
        world.ledger.jobs(cursor=cursor)


def test_open_jobs_are_all_that_are_not_terminal(world: World) -> None:
    world.finish(world.claimed().token)
    running, queued = world.claimed().job.id, world.submit()
    assert sorted(job.id for job in world.ledger.iter_open()) == sorted([running, queued])


def test_the_backlog_has_the_oldest_jobs_of_each_function(world: World) -> None:
    ids = [world.submit(params={"n": number}) for number in range(5)]
    other = world.submit(function="other")
    first, second = world.ledger.backlog(limit=3)
    assert (first.function, first.ready, first.delayed) == ("ocr", 5, 0)
    assert [job.id for job in first.jobs] == ids[:3]
    assert (first.jobs[1].params, first.jobs[1].size, first.jobs[1].owner) == ({"n": 1}, 100, "default")
    assert [job.id for job in second.jobs] == [other]
    assert first.jobs[0].created_at <= first.jobs[1].created_at


def test_an_empty_function_is_in_no_backlog(world: World) -> None:
    claim = world.claimed()
    assert world.ledger.backlog() == []
    world.finish(claim.token)
    assert world.ledger.backlog() == []
    assert world.ledger.counts() == {"ocr": {JobState.succeeded: 1}}


def test_waiting_ends_when_the_job_does_and_not_before_its_time(world: World) -> None:
    claim = world.claimed()
    still = world.ledger.wait(claim.job.id, 0.05)
    assert still is not None and still.state == "running"
    other = world.again()
    results: list[object] = []
    waiter = threading.Thread(target=lambda: results.append(other.wait(claim.job.id, 30.0)))
    waiter.start()
    world.submit()
    world.finish(claim.token)
    waiter.join(10.0)
    assert not waiter.is_alive()
    assert getattr(results[0], "state", None) == "succeeded"
    assert world.ledger.wait("f" * 32, 5.0) is None


def test_the_stream_can_be_resumed_from_any_line_and_waited_on(world: World) -> None:
    ledger = world.ledger
    assert ledger.transitions("0") == [] and ledger.transitions(ledger.last_position()) == []
    ids = [world.submit() for _ in range(5)]
    first = ledger.transitions("0", limit=2)
    assert [line.job_id for line in first] == ids[:2]
    rest = ledger.transitions(first[-1].position)
    assert [line.job_id for line in rest] == ids[2:]
    assert ledger.last_position() == rest[-1].position
    assert ledger.transitions(rest[-1].position, 0.02) == []
    assert ledger.transitions("$") == []

    got: list[object] = []
    reader = threading.Thread(target=lambda: got.extend(world.again().transitions(rest[-1].position, 30.0)))
    reader.start()
    late = world.submit()
    reader.join(10.0)
    assert [getattr(line, "job_id", None) for line in got] == [late]


def test_settled_identities_start_nothing_again_even_when_their_jobs_are_forgotten(world: World) -> None:
    ledger, job = world.ledger, world.new()
    ledger.submit(job)
    assert ledger.known([job.id, "f" * 32]) == [True, False]
    world.finish(world.claim(job.id).token)
    assert ledger.expire(0.0) == 0
    assert ledger.expire(9e9) == 1
    assert ledger.job(job.id) is None and ledger.counts() == {} and listed(world, 5) == []
    again = ledger.submit(job)
    assert (again.created, again.state, again.settled) == (False, None, True)
    assert ledger.known([job.id]) == [True]


def test_a_retry_of_a_forgotten_job_is_accepted_and_looks_first(world: World) -> None:
    job = world.new()
    assert world.ledger.settle([job.id]) == 1
    assert world.ledger.submit(replace(job, generation=2)).created
    assert world.claim(job.id).look_first


def test_more_identities_than_two_chunks_are_settled_and_known(world: World) -> None:
    ids = [f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}" for number in range(1, 2502)]
    assert world.ledger.settle(iter(ids)) == 2501
    assert world.ledger.settle(ids[:10]) == 0
    assert all(world.ledger.known(ids))
    assert world.ledger.known([]) == []


def test_an_identity_is_dropped_only_when_its_job_is_forgotten(world: World) -> None:
    ledger, job = world.ledger, world.new()
    ledger.submit(job)
    world.finish(world.claim(job.id).token)
    ids = [f"{number:032x}" for number in range(2001)]
    ledger.settle(ids)
    assert ledger.unsettle([job.id, *ids, "f" * 32]) == 2001
    assert ledger.known([job.id, ids[0], ids[2000]]) == [True, False, False]
    ledger.expire(9e9)
    assert ledger.known([job.id]) == [True]
    assert ledger.unsettle([job.id]) == 1 and ledger.unsettle([job.id]) == 0
    assert ledger.submit(job).created


def test_forgetting_takes_no_more_than_its_limit_and_no_open_job(world: World) -> None:
    for _ in range(5):
        world.finish(world.claimed().token)
    open_job = world.submit()
    assert [world.ledger.expire(9e9, limit=2) for _ in range(4)] == [2, 2, 1, 0]
    assert listed(world, 5) == [open_job]


def test_live_logs_are_read_from_any_line_while_they_grow(world: World) -> None:
    ledger, claim = world.ledger, world.claimed()
    assert ledger.append_log(claim.token, [("stdout", "one"), ("stderr", "two ü")])
    first = ledger.log(claim.job.id)
    assert [(line.stream, line.text) for line in first] == [("stdout", "one"), ("stderr", "two ü")]
    ledger.append_log(claim.token, [("log", "three")])
    assert [line.text for line in ledger.log(claim.job.id, after=first[-1].position)] == ["three"]
    assert ledger.log(claim.job.id, after=ledger.log(claim.job.id)[-1].position, block_s=0.02) == []
    world.finish(claim.token)
    assert len(ledger.log(claim.job.id)) == 3
    assert ledger.log("f" * 32) == []


def test_a_live_log_keeps_its_newest_two_thousand_lines_and_cuts_endless_ones(world: World) -> None:
    claim = world.claimed()
    for start in range(0, 2100, 700):
        world.ledger.append_log(claim.token, [("stdout", str(start + number)) for number in range(700)])
    lines = world.ledger.log(claim.job.id, limit=5000)
    assert [line.text for line in lines] == [str(number) for number in range(100, 2100)]
    world.ledger.append_log(claim.token, [("stdout", "x" * 100_000)])
    assert len(world.ledger.log(claim.job.id, after=lines[-1].position)[0].text) == 4096


def test_ignored_objects_are_listed_once_with_their_reason(world: World) -> None:
    ledger = world.ledger
    ledger.note_ignored("scans", "a/b.tmp", "temporary name")
    ledger.note_ignored("scans", "empty", "empty")
    ledger.note_ignored("scans", "a/b.tmp", "temporary name")
    found = ledger.ignored()
    assert [entry[:3] for entry in found] == [("scans", "empty", "empty"), ("scans", "a/b.tmp", "temporary name")]
    ledger.note_ignored("scans", "a/b.tmp", "too large")
    assert ledger.ignored(limit=1)[0][:3] == ("scans", "a/b.tmp", "too large")
    assert len(ledger.ignored()) == 2


def test_junk_bodies_are_kept_short_and_newest_first(world: World) -> None:
    world.ledger.note_junk("webhook", "not JSON", b"\xff\x00{")
    world.ledger.note_junk("webhook", "too large", b"x" * 1_000_000)
    newest, older = world.ledger.junk()
    assert (newest["reason"], newest["size"], len(newest["body"])) == ("too large", 1_000_000, 4096)
    assert older["source"] == "webhook" and older["body"].endswith("{")
    assert len(world.ledger.junk(limit=1)) == 1


def test_the_server_says_how_it_is(world: World) -> None:
    memory = world.ledger.memory()
    assert memory.used >= 0 and not memory.full
    assert world.ledger.ping() >= 0


def test_long_texts_of_an_error_keep_their_ends(world: World) -> None:
    claim = world.claimed()
    error = JobError(code="function_failed", message="m", traceback="t" * 50_000 + "END", log_tail="l" * 50_000 + "END")
    world.finish(claim.token, "failed", error=error)
    job = world.ledger.job(claim.job.id)
    assert job is not None and job.error is not None
    assert job.error.traceback.endswith("tEND") and len(job.error.traceback) < 20_000
    assert job.error.log_tail.endswith("lEND") and len(job.error.log_tail) < 10_000
    assert world.ledger.transitions("0")[-1].error == "function_failed: m"


def test_waiting_jobs_show_no_agent_and_released_ones_do(world: World) -> None:
    job_id = world.submit()
    world.ledger.release(job_id, world.agent(), Placement(pool="gpu"))
    job = world.ledger.job(job_id)
    assert job is not None and (job.agent, job.pool) == ("gpu-000001", "gpu")


def test_reading_from_now_on_gives_only_what_comes_later(world: World) -> None:
    old = world.submit()
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.extend(line.job_id for line in world.again().transitions("$", 30.0)))
    reader.start()
    new: list[str] = []

    def read() -> bool:
        if len(new) < 200:
            new.append(world.submit())
        return not reader.is_alive()

    wait_until(read, 10.0)
    assert got and old not in got and set(got) <= set(new)
