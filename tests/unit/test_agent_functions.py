"""Which function an agent takes a job for: the ledger's, and the bucket's when the ledger has lost it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.models import FunctionRecord, FunctionSpec, PoolSpec
from tidemill.record import Record
from tidemill.settings import AgentSettings
from tidemill.testing import MemoryLedger, MemoryStore
from tidemill_workers.agent.service import Agent

ECHO = FunctionRecord(
    spec=FunctionSpec.model_validate({"name": "echo", "handler": "echo:run"}),
    revision="r1",
    deployed_at=1.0,
    triggers_since=1.0,
)


@pytest.fixture
def ledger() -> MemoryLedger:
    found = MemoryLedger()
    found.begin_epoch(1, 0)
    return found


@pytest.fixture
def record() -> Record:
    found = Record(MemoryStore(), sleep=lambda seconds: None)
    found.prepare()
    return found


@pytest.fixture
def agent(ledger: MemoryLedger, record: Record, tmp_path: Path) -> Iterator[Agent]:
    made = Agent("near-1", PoolSpec(name="near"), ledger, record, AgentSettings(), tmp_path)
    yield made
    made.stop()


def test_a_function_is_taken_from_the_ledger(agent: Agent, ledger: MemoryLedger) -> None:
    ledger.put_function(ECHO)
    assert agent.find("echo") == ECHO


def test_a_function_that_the_ledger_has_lost_is_taken_from_the_bucket(agent: Agent, record: Record) -> None:
    # Redis was emptied between claim and run: the job must not fail as one of a deleted function.
    record.put_function(ECHO)
    assert agent.find("echo") == ECHO


def test_a_deleted_function_is_none(agent: Agent, record: Record) -> None:
    record.put_function(ECHO.model_copy(update={"deleted_at": 2.0}))
    assert agent.find("echo") is None
    assert agent.find("nosuch") is None
