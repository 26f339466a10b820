"""Cancelled, poisoned, given back, refused: every end of a job through a real gateway, Valkey and store, with the sweep
that placement runs and an agent that the test plays."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from tests.support import S3, wait_until
from tests.support.gateway import AGENT, TOKEN, Lab, free_socket, run_gateway
from tidemill import Client
from tidemill.ledger.api import AgentReport, Claim, Ended
from tidemill.models import FunctionRecord, JobError, JobState, Placement
from tidemill.record.ending import End, finish
from tidemill_placement.endings import Endings
from tidemill_placement.sweeper import Sweeper

ECHO: dict[str, object] = {"name": "echo", "handler": "work:run", "limits": {"attempts": 2}}


class Bell:
    """A doorbell that nobody hears."""

    def ring(self, pool: str, agent: str, job_id: str = "", function: str = "") -> bool:
        return False

    def forget(self, pool: str, agent: str) -> None:
        raise AssertionError("no agent is gone for good here")


class Site:
    """The gateway, the sweep, and an agent."""

    def __init__(self, lab: Lab, workers: ThreadPoolExecutor) -> None:
        self.lab = lab
        endings = Endings(lab.ledger, lab.services.record, "placement", 15.0)
        self.sweeper = Sweeper(lab.ledger, endings, Bell(), "placement", 15.0, 3600.0, workers)
        self.beat()

    def beat(self) -> None:
        self.lab.ledger.heartbeat(AgentReport(AGENT, "pool", 8, state="ready"))

    def submit(self, content: bytes = b"x") -> str:
        answer = self.lab.http.post("/api/v1/functions/echo/jobs", files={"files": ("a.txt", content)})
        assert answer.status_code == 202, answer.text
        job_id: str = answer.json()["id"]
        return job_id

    def release(self, job_id: str) -> None:
        assert self.lab.ledger.release(job_id, AGENT, Placement(pool="pool"))

    def claim(self, job_id: str, lease_s: float = 60.0) -> Claim:
        self.release(job_id)
        (claim,) = self.lab.ledger.claim(AGENT, 1, lease_s)
        assert claim.job.id == job_id
        return claim

    def show(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.lab.http.get(f"/api/v1/jobs/{job_id}").raise_for_status().json()
        return found

    def cancel(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.lab.http.post(f"/api/v1/jobs/{job_id}/cancel").raise_for_status().json()
        return found

    def function(self) -> FunctionRecord:
        found = self.lab.ledger.function("echo")
        assert found is not None
        return found

    def finish(self, claim: Claim, end: End) -> None:
        assert finish(self.lab.ledger, self.lab.services.record, claim, self.function(), end) is not None

    def poison(self, job_id: str) -> None:
        """Its agent dies with it, as often as it may be tried."""
        while self.state(job_id) is JobState.queued:
            self.claim(job_id, lease_s=0.0)
            self.sweeper.sweep()
        self.ends(job_id)

    def state(self, job_id: str) -> JobState:
        job = self.lab.ledger.job(job_id)
        assert job is not None
        return job.state

    def ends(self, job_id: str) -> None:
        """The sweep ends jobs in threads."""
        wait_until(lambda: self.state(job_id).terminal)


@pytest.fixture
def site(s3: S3, redis_url: str, bucket: str) -> Iterator[Site]:
    with free_socket() as sock, run_gateway(s3, redis_url, bucket, sock) as lab, ThreadPoolExecutor(2) as workers:
        assert lab.deploy(ECHO).status_code == 200
        yield Site(lab, workers)


# -- cancel, at every state ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("state", ["queued", "released", "delayed"])
def test_a_waiting_job_is_cancelled_at_once_and_for_good(site: Site, state: str) -> None:
    job_id = site.submit()
    if state == "released":
        site.release(job_id)
    if state == "delayed":
        site.lab.ledger.give_back(site.claim(job_id).token, delay_s=3600.0)
    assert site.cancel(job_id)["state"] == "cancelled"
    manifest = site.lab.services.record.get_manifest("echo", job_id, 1)
    assert manifest is not None and manifest.state == "cancelled"
    assert site.lab.ledger.claim(AGENT, 1, 60.0) == []
    assert not site.lab.ledger.release(job_id, AGENT, Placement())
    assert site.cancel(job_id)["state"] == "cancelled"


def test_a_running_job_hears_of_its_cancel_and_is_cancelled_by_its_agent(site: Site) -> None:
    job_id = site.submit()
    claim = site.claim(job_id)
    assert site.cancel(job_id)["cancel_requested"]
    assert site.lab.ledger.renew([claim.token], 60.0)[0].cancel
    site.finish(claim, End("cancelled", JobError(code="cancelled")))
    assert site.show(job_id)["state"] == "cancelled"


@pytest.mark.parametrize("how", ["its agent died", "its agent gave it back", "its agent drains"])
def test_a_running_job_to_be_cancelled_is_never_run_again_whatever_its_agent_does(site: Site, how: str) -> None:
    job_id = site.submit()
    claim = site.claim(job_id, lease_s=0.0 if how == "its agent died" else 60.0)
    site.cancel(job_id)
    if how != "its agent died":
        assert site.lab.ledger.give_back(claim.token, count=how == "its agent gave it back")
    site.sweeper.sweep()
    site.ends(job_id)
    assert site.show(job_id)["state"] == "cancelled"
    assert site.show(job_id)["error"]["code"] == "cancelled"


def test_a_cancel_after_the_commit_comes_too_late(site: Site) -> None:
    job_id = site.submit()
    claim = site.claim(job_id)
    assert site.lab.ledger.commit(claim.token, Ended("succeeded"), 60.0)
    assert site.cancel(job_id)["state"] == "committed"
    site.finish(claim, End("succeeded"))
    assert site.show(job_id)["state"] == "succeeded"
    assert site.cancel(job_id)["state"] == "succeeded"


def test_a_cancel_that_meets_the_end_leaves_one_truth(site: Site) -> None:
    """The function's last attempt commits while somebody cancels: store, ledger and manifest tell the same."""
    for number in range(6):
        job_id = site.submit(f"race {number}".encode())
        claim = site.claim(job_id)
        with ThreadPoolExecutor(2) as pool:
            ended, cancelled = pool.submit(site.finish, claim, End("succeeded")), pool.submit(site.cancel, job_id)
        assert ended.exception() is None and cancelled.exception() is None
        manifest = site.lab.services.record.get_manifest("echo", job_id, 1)
        assert manifest is not None
        assert site.show(job_id)["state"] == manifest.state == "succeeded"


# -- poison jobs ---------------------------------------------------------------------------------------------------
def test_a_poison_job_stops_after_its_attempts_and_is_kept_with_its_history(site: Site) -> None:
    job_id = site.submit()
    site.poison(job_id)
    job = site.show(job_id)
    assert (job["state"], job["error"]["code"], job["attempt"]) == ("failed", "attempts_exhausted", 2)
    assert [(event["what"], event["attempt"]) for event in job["history"]] == [
        ("lease_expired", 1),
        ("lease_expired", 2),
    ]
    manifest = site.lab.services.record.get_manifest("echo", job_id, 1)
    assert manifest is not None and len(manifest.history) == 2
    assert site.sweeper.sweep() == 0


def test_failed_jobs_are_listed_found_by_reason_and_retried_one_by_one_or_all(site: Site) -> None:
    poisoned = [site.submit(f"poison {number}".encode()) for number in range(3)]
    for job_id in poisoned:
        site.poison(job_id)
    other = site.submit(b"broken")
    site.finish(site.claim(other), End("failed", JobError(code="function_failed", message="no")))
    good = site.submit(b"good")
    site.finish(site.claim(good), End("succeeded"))

    def found(**filters: str) -> set[str]:
        return {str(job["id"]) for job in site.lab.jobs(**filters)}

    assert found(state="failed") == {*poisoned, other}
    assert found(state="failed", reason="attempts_exhausted") == set(poisoned)
    assert found(reason="function_failed") == {other}
    with Client(site.lab.url, TOKEN) as client:
        one = client.job(poisoned[0]).retry()
        assert (one.id, one.data["generation"], one.state) == (poisoned[0], 2, "queued")
        again = [job.retry() for job in list(client.jobs(state="failed", reason="attempts_exhausted"))]
        assert {job.id for job in again} == set(poisoned[1:])
    assert found(state="failed") == {other}
    for job_id in poisoned:
        claim = site.claim(job_id)
        assert (claim.token.generation, claim.token.attempt) == (2, 1), "attempts count anew"
        site.finish(claim, End("succeeded"))
        assert site.show(job_id)["state"] == "succeeded"
        assert site.lab.services.record.get_manifest("echo", job_id, 1).state == "failed"  # type: ignore[union-attr]


def test_what_an_agent_gives_back_while_it_drains_costs_no_attempt(site: Site) -> None:
    job_id = site.submit()
    for _ in range(5):
        claim = site.claim(job_id)
        assert claim.token.attempt == 1
        assert site.lab.ledger.give_back(claim.token, count=False, why="drain")
    assert [event["what"] for event in site.show(job_id)["history"]] == ["given_back"] * 5
    site.finish(site.claim(job_id), End("succeeded"))


# -- memory --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("share", [0.85, 1.05])
def test_a_ledger_short_of_memory_refuses_new_jobs_and_what_runs_goes_on_and_reports(
    site: Site, redis_url: str, share: float
) -> None:
    """Above 80 % by the gateway's own look; above its limit the server itself refuses what brings data in."""
    ledger = site.lab.ledger
    running, waiting, given = site.submit(b"1"), site.submit(b"2"), site.submit(b"3")
    first = site.claim(running)
    second = site.claim(given)
    with redis.Redis.from_url(redis_url) as connection:
        before = connection.config_get("maxmemory")["maxmemory"]
        connection.config_set("maxmemory", str(int(connection.info("memory")["used_memory"] / share)))
        try:
            refused = wait_until(lambda: answer if (answer := _post(site)).status_code == 503 else None, 5)
            assert (
                refused is not None and refused.json()["code"] == "ledger_full" and "memory" in refused.json()["detail"]
            )
            site.beat()
            assert ledger.renew([first.token, second.token], 60.0)[0].held
            assert ledger.progress(first.token, 1, 2, "page")
            site.finish(first, End("succeeded"))
            assert ledger.give_back(second.token, why="no luck")
            site.finish(site.claim(waiting), End("failed", JobError(code="function_failed", message="no")))
            assert site.cancel(given)["state"] == "cancelled"
            assert site.sweeper.sweep() == 0
        finally:
            connection.config_set("maxmemory", before)
    states = [site.show(job_id)["state"] for job_id in (running, waiting, given)]
    assert states == ["succeeded", "failed", "cancelled"]
    wait_until(lambda: _post(site).status_code == 202, 5)


def _post(site: Site) -> Any:
    return site.lab.http.post("/api/v1/functions/echo/jobs", files={"files": ("a.txt", b"another")})
