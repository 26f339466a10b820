"""Deploys, replays and deletes beside each other, and those that broke off: bucket and ledger agree in the end."""

from collections.abc import Callable
from typing import Any

import pytest

from tidemill.errors import InvalidSpec, LedgerUnavailable, NotFound
from tidemill.models import FunctionRecord, FunctionSpec, JobError
from tidemill.record import Record
from tidemill.testing import MemoryLedger, MemoryStore
from tidemill_gateway.auth import Owner
from tidemill_gateway.deploy import Deployer

ME = Owner("default", ["*"])


class Gateways:
    """One store, one ledger, and two gateways."""

    def __init__(self) -> None:
        self.store, self.ledger = MemoryStore(), MemoryLedger()
        self.ledger.begin_epoch(1, 1)
        self.record = Record(self.store)  # the first one's, so that a test can hold it up
        self.record.prepare()
        self.first = Deployer(self.ledger, self.record, self.store)
        self.second = Deployer(self.ledger, Record(self.store), self.store)

    def deploy(self, deployer: Deployer | None = None, name: str = "echo", attempts: int = 3) -> FunctionRecord:
        text = {"name": name, "command": ("sh", "x.sh"), "limits": {"attempts": attempts}}
        trigger = {"bucket": "inbox", "prefix": "in/"}
        return (deployer or self.first).deploy(FunctionSpec.model_validate({**text, "trigger": trigger}), None, ME)

    def agree(self) -> FunctionRecord | None:
        """Check that the ledger has what the bucket has, and give it."""
        stored = Record(self.store).get_function("echo")
        live = stored if stored is not None and stored.deleted_at is None else None
        assert self.ledger.function("echo") == live
        return live


@pytest.fixture
def two() -> Gateways:
    return Gateways()


def before(patch: pytest.MonkeyPatch, owner: object, name: str, work: Callable[[], object]) -> None:
    """Do some work once, right before the next call of a method."""
    real, left = getattr(owner, name), [work]

    def call(*args: Any, **more: Any) -> Any:
        if left:
            left.pop()()
        return real(*args, **more)

    patch.setattr(owner, name, call)


def away(*_: object, **__: object) -> None:
    raise LedgerUnavailable("Redis does not answer")


def test_a_delete_that_broke_off_is_completed_by_the_next_one(two: Gateways, monkeypatch: pytest.MonkeyPatch) -> None:
    two.deploy()
    with monkeypatch.context() as patch:
        patch.setattr(two.ledger, "remove_function", away)
        with pytest.raises(LedgerUnavailable):
            two.first.remove("echo")
    assert two.ledger.function("echo") is not None
    assert two.second.remove("echo").deleted_at is not None
    assert two.agree() is None
    with pytest.raises(NotFound):
        two.first.remove("echo")


def test_a_deploy_that_broke_off_is_completed_by_the_next_one(two: Gateways, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(two.ledger, "put_function", away)
        with pytest.raises(LedgerUnavailable):
            two.deploy()
    assert two.ledger.function("echo") is None
    made = two.deploy(two.second)
    assert two.agree() == made


@pytest.mark.parametrize("call", ["put", "put_function"])
def test_a_replay_beside_a_delete_undoes_it_not(two: Gateways, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    two.deploy()
    before(monkeypatch, two.store if call == "put" else two.ledger, call, lambda: two.second.remove("echo"))
    if call == "put":
        with pytest.raises(NotFound):
            two.first.replay("echo", ["inbox/in/"])
    else:
        two.first.replay("echo", ["inbox/in/"])
    assert two.agree() is None


@pytest.mark.parametrize("call", ["put", "put_function"])
def test_a_replay_beside_a_deploy_undoes_it_not(two: Gateways, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    two.deploy()
    owner = two.store if call == "put" else two.ledger
    before(monkeypatch, owner, call, lambda: two.deploy(two.second, attempts=7))
    two.first.replay("echo", ["inbox/in/"])
    found = two.agree()
    assert found is not None
    assert (found.spec.limits.attempts, found.replayed) == (7, ("inbox/in/",))


@pytest.mark.parametrize("call", ["put", "put_function"])
def test_a_deploy_beside_a_replay_keeps_it(two: Gateways, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    first = two.deploy()
    owner = two.store if call == "put" else two.ledger
    before(monkeypatch, owner, call, lambda: two.second.replay("echo", ["inbox/in/"]))
    two.deploy(attempts=7)
    found = two.agree()
    assert found is not None
    assert (found.spec.limits.attempts, found.replayed) == (7, ("inbox/in/",))
    assert found.places_since == first.places_since


def test_a_delete_beside_a_deploy_leaves_no_ledger_that_disagrees(
    two: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.deploy()
    before(monkeypatch, two.ledger, "remove_function", lambda: two.deploy(two.second, attempts=7))
    two.first.remove("echo")
    found = two.agree()
    assert found is not None
    assert found.spec.limits.attempts == 7


def test_an_unchanged_deploy_leaves_the_version_alone(two: Gateways) -> None:
    two.deploy()
    two.ledger.start_failed("other", "r1", JobError(code="start_failed"), permanent=True)
    version = two.ledger.version()
    two.deploy()
    assert two.ledger.version() == version


def test_an_unchanged_deploy_forgets_failed_starts_and_writes_no_record(two: Gateways) -> None:
    made = two.deploy()
    for _ in range(3):
        two.ledger.start_failed("echo", made.revision, JobError(code="start_failed"), permanent=True)
    assert two.deploy() == made == two.agree()
    assert two.ledger.start_failures() == []


def test_a_function_that_would_lie_among_the_code_archives_is_refused(two: Gateways) -> None:
    with pytest.raises(InvalidSpec, match="`code` is taken"):
        two.deploy(name="code")
