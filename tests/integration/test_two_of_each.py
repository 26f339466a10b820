"""Two gateways, two placement services at once: one leads, the other takes over, and a paused one doubles nothing."""

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.test_placement_service import Site
from tests.support import S3, wait_until
from tests.support.gateway import Lab, free_socket, run_gateway
from tidemill.ledger.api import Ledger


@pytest.fixture
def labs(s3: S3, redis_url: str, bucket: str) -> Iterator[tuple[Lab, Lab]]:
    with (
        free_socket() as first,
        free_socket() as second,
        run_gateway(s3, redis_url, bucket, first) as one,
        run_gateway(s3, redis_url, bucket, second) as two,
    ):
        trigger = {"bucket": f"{bucket}-in", "prefix": "in/"}
        one.deploy({"name": "echo", "handler": "work:run", "trigger": trigger}).raise_for_status()
        yield one, two


def _drop(lab: Lab, bucket: str, numbers: range) -> None:
    for number in numbers:
        lab.store.put(f"{bucket}-in", f"in/{number}.txt", str(number).encode())


def _accepted(ledger: Ledger) -> Counter[str]:
    """How often each job was accepted."""
    return Counter(line.job_id for line in ledger.transitions("0", limit=100_000) if line.created)


def test_two_gateways_list_in_turns_and_each_object_is_one_job(labs: tuple[Lab, Lab], bucket: str) -> None:
    one, two = labs
    one.services.start()
    two.services.start()
    _drop(one, bucket, range(40))
    wait_until(lambda: len(_accepted(one.ledger)) == 40, 20)
    one.services.reconciler.stop(5.0)  # the lease is given up: the other one takes over
    _drop(two, bucket, range(40, 60))
    wait_until(lambda: len(_accepted(two.ledger)) == 60, 20)
    assert set(_accepted(two.ledger).values()) == {1}


def test_a_gateway_that_is_paused_in_the_middle_of_a_listing_doubles_nothing(
    labs: tuple[Lab, Lab], bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = labs
    _drop(one, bucket, range(30))
    asked, go_on = threading.Event(), threading.Event()
    real = one.ledger.known

    def known(job_ids: Any) -> list[bool]:
        found = real(job_ids)
        if job_ids:
            asked.set()
            assert go_on.wait(20)
        return found

    monkeypatch.setattr(one.ledger, "known", known)
    paused = threading.Thread(target=one.services.reconciler.round)
    paused.start()
    assert asked.wait(20)
    one.ledger.resign("reconciler", one.services.holder)  # as if its lease were over
    two.services.reconciler.round()
    assert len(_accepted(two.ledger)) == 30
    go_on.set()
    paused.join(20)
    assert not paused.is_alive()
    assert set(_accepted(two.ledger).values()) == {1} and len(_accepted(two.ledger)) == 30


@pytest.fixture
def site(redis_url: str, s3: S3, bucket: str) -> Iterator[Site]:
    found = Site(redis_url, s3, bucket)
    yield found
    found.scaler.end()


def test_a_placement_service_that_is_paused_in_the_middle_of_a_turn_releases_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.setup(idle_timeout=30)
    with site.service() as first:
        wait_until(lambda: first.service.leads and site.ledger.epoch() is not None)
        wait_until(lambda: "ocr" in site.ledger.functions())
        reached, go_on = threading.Event(), threading.Event()
        replies: list[bool] = []
        ledger = first.service.ledger
        real = ledger.release

        def release(*args: Any, **kwargs: Any) -> bool:
            reached.set()
            assert go_on.wait(30)
            replies.append(real(*args, **kwargs))
            return replies[-1]

        monkeypatch.setattr(ledger, "release", release)
        ids = site.submit(3)
        assert reached.wait(20)
        first.freeze()
        with site.service() as second:
            wait_until(lambda: second.service.leads, 15)
            go_on.set()
            first.thaw()
            wait_until(lambda: len(replies) > 0, 10)
            wait_until(lambda: site.done(ids), 30)
            assert not any(replies), "each release of the old leader was refused"
            assert second.service.leads
            wait_until(lambda: not first.service.leads, 15)
        lines = [line for line in site.ledger.transitions("0", limit=10_000) if line.job_id in ids]
        assert Counter(line.job_id for line in lines if line.state.terminal) == dict.fromkeys(ids, 1)
