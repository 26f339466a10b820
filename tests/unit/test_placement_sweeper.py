"""The sweep goes on while what it found is ended: publications may take long."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support import wait_until
from tests.unit.test_placement_turns import House
from tidemill.ledger.api import Claim, Ended
from tidemill.models import JobState, Placement
from tidemill_placement.sweeper import Sweeper

LEASE_S = 15.0


class Endings:
    """Ends that take until they are let go; then they do what they are told."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun: list[str] = []
        self.then: Callable[[Claim], object] = lambda claim: None

    def unpublished(self, claim: Claim) -> bool:
        self.begun.append(claim.job.id)
        assert self.go.wait(20)
        self.then(claim)
        return True

    def exhausted(self, claim: Claim, function: object) -> bool:
        return self.unpublished(claim)


class Site(House):
    """A house whose sweeper has two threads."""

    def __init__(self, workers: ThreadPoolExecutor) -> None:
        super().__init__()
        self.slow: Any = Endings()
        self.sweeper = Sweeper(self.ledger, self.slow, self.bell, "me", LEASE_S, 3600.0, workers, lead=self.lead)
        self.function()
        self.beat("p-a", slots=500)

    def claim(self, number: int, lease_s: float = LEASE_S) -> Claim:
        job_id = f"{number:032x}"
        self.submit(job_id)
        assert self.ledger.release(job_id, "p-a", Placement(pool="p"))
        (claim,) = self.ledger.claim("p-a", 1, lease_s)
        return claim

    def committed(self, number: int) -> str:
        """A job whose agent dies while it publishes."""
        claim = self.claim(number)
        assert self.ledger.commit(claim.token, Ended("succeeded"), LEASE_S)
        return claim.job.id


@pytest.fixture
def site() -> Iterator[Site]:
    with ThreadPoolExecutor(2) as workers:
        found = Site(workers)
        yield found
        found.slow.go.set()


def test_while_a_publication_goes_on_other_leases_are_mended(site: Site) -> None:
    large = site.committed(1)
    running = site.claim(2, lease_s=40.0).job.id
    site.now += LEASE_S + 1
    assert site.sweeper.sweep() == 1
    wait_until(lambda: site.slow.begun == [large])
    site.now += 30
    site.sweeper.sweep()
    assert site.state(running) is JobState.queued
    assert site.state(large) is JobState.committed


def test_what_is_in_hand_keeps_its_lease_and_is_begun_once(site: Site) -> None:
    large = site.committed(1)
    site.slow.then = lambda claim: site.ledger.published(claim.token, Ended("succeeded"))
    site.now += LEASE_S + 1
    site.sweeper.sweep()
    for _ in range(10):
        site.now += LEASE_S - 1
        assert site.sweeper.sweep() == 0
    site.slow.go.set()
    wait_until(lambda: site.state(large) is JobState.succeeded)
    assert site.slow.begun == [large]


def test_what_is_in_hand_and_comes_back_from_another_leader_is_begun_again_when_it_is_out_of_hand(site: Site) -> None:
    large = site.committed(1)
    site.now += LEASE_S + 1
    assert site.sweeper.sweep() == 1
    site.now += LEASE_S + 1
    assert len(site.ledger.sweep("other", LEASE_S, 3600.0).unpublished) == 1
    for found in (1, 0, 0):
        site.now += LEASE_S + 1
        assert site.sweeper.sweep() == found
    assert site.slow.begun == [large]
    site.slow.go.set()
    wait_until(lambda: not site.sweeper._in_hand)
    site.now += LEASE_S + 1
    assert site.sweeper.sweep() == 1
    wait_until(lambda: site.slow.begun == [large, large])


def test_an_end_that_broke_is_logged_and_begun_again_when_its_lease_is_over(
    site: Site, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(claim: Claim) -> None:
        raise OSError("no more files")

    large = site.committed(1)
    site.slow.then = breaks
    site.slow.go.set()
    site.now += LEASE_S + 1
    with caplog.at_level(logging.INFO):
        site.sweeper.sweep()
        wait_until(lambda: not site.sweeper._in_hand)
    assert "no more files" in caplog.text + capsys.readouterr().out
    site.slow.then = lambda claim: site.ledger.published(claim.token, Ended("succeeded"))
    site.now += LEASE_S + 1
    site.sweeper.sweep()
    wait_until(lambda: site.state(large) is JobState.succeeded)


def test_a_sweep_takes_no_more_in_hand_than_it_can_hold_and_the_rest_later(site: Site) -> None:
    ids = [site.committed(number) for number in range(250)]
    site.slow.then = lambda claim: site.ledger.published(claim.token, Ended("succeeded"))
    site.now += LEASE_S + 1
    assert site.sweeper.sweep() == 200
    for _ in range(3):
        site.now += 3
        assert site.sweeper.sweep() == 0
    assert sum(site.state(job_id) is JobState.committed for job_id in ids) == 250
    site.slow.go.set()
    wait_until(lambda: not site.sweeper._in_hand)
    site.now += 3
    assert site.sweeper.sweep() == 50
    wait_until(lambda: all(site.state(job_id) is JobState.succeeded for job_id in ids))
    assert len(site.slow.begun) == 250


def test_full_hands_keep_nothing_else_from_being_mended(site: Site) -> None:
    for number in range(450):
        site.committed(number)
    site.now += 1
    running = [site.claim(1000 + number).job.id for number in range(3)]
    site.beat("p-b", slots=1)
    site.submit(lost := f"{2000:032x}")
    assert site.ledger.release(lost, "p-b", Placement(pool="p"))
    site.now += LEASE_S + 1
    assert site.sweeper.sweep() == 200 + 3 + 1
    assert [site.state(job_id) for job_id in running] == [JobState.queued] * 3
    assert ("p-b", "") in site.bell.rings
    another = site.claim(3000).job.id
    site.now += LEASE_S + 1
    site.sweeper.sweep()
    assert site.state(another) is JobState.queued


def test_at_the_end_of_the_service_what_has_not_begun_is_left_to_the_next_leader(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [site.committed(number) for number in range(5)]
    site.now += LEASE_S + 1
    workers = ThreadPoolExecutor(1)
    sweeper = Sweeper(site.ledger, site.slow, site.bell, "me", LEASE_S, 3600.0, workers, lead=site.lead)
    assert sweeper.sweep() == 5
    wait_until(lambda: len(site.slow.begun) == 1)
    with caplog.at_level(logging.ERROR):
        workers.shutdown(wait=False, cancel_futures=True)
    assert (len(sweeper._in_hand), caplog.text) == (1, "")
    site.slow.go.set()
    wait_until(lambda: not sweeper._in_hand)
    site.now += LEASE_S + 1
    assert sorted(claim.job.id for claim in site.ledger.sweep("next", LEASE_S, 3600.0).unpublished) == ids


def test_the_lease_of_a_job_that_another_leader_took_over_is_not_prolonged(site: Site) -> None:
    large = site.committed(1)
    site.now += LEASE_S + 1
    site.sweeper.sweep()
    site.now += LEASE_S + 1
    (theirs,) = site.ledger.sweep("other", LEASE_S, 3600.0).unpublished
    site.now += LEASE_S - 1
    site.sweeper.sweep()
    site.now += 2
    (again,) = site.ledger.sweep("other", LEASE_S, 3600.0).unpublished
    assert again.job.id == theirs.job.id == large
