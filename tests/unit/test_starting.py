"""What cannot become a runner is said once to the ledger, and as the function's start that failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.models import FunctionRecord, FunctionSpec
from tidemill.record import Record
from tidemill.testing import MemoryLedger, MemoryStore
from tidemill_workers.agent.code import CodeCache
from tidemill_workers.agent.starting import Starter, StartFailed
from tidemill_workers.environments import EnvironmentBuilder


@pytest.mark.parametrize("body", [None, b"not an archive"])
def test_code_that_is_gone_or_damaged_is_a_failed_start(tmp_path: Path, body: bytes | None) -> None:
    key = f"functions/code/{'0' * 64}.tar.gz"
    store, ledger = MemoryStore(), MemoryLedger()
    record = Record(store)
    record.prepare()
    ledger.begin_epoch(1, 0)
    function = FunctionRecord(
        spec=FunctionSpec.model_validate({"name": "fn", "handler": "a:b"}),
        revision="r1",
        code_sha256="0" * 64,
        deployed_at=0,
        triggers_since=0,
    )
    if body is not None:
        store.put(record.bucket, key, body)
    ledger.put_function(function)
    starter = Starter(
        ledger, CodeCache(tmp_path / "code", record), EnvironmentBuilder(tmp_path / "venvs"), tmp_path, {}, ()
    )
    with pytest.raises(StartFailed) as told:
        starter.start(function)
    assert told.value.permanent
    assert [failure.permanent for failure in ledger.start_failures()] == [1]
    assert told.value.fault.code == "start_failed"
    assert "code" in told.value.fault.message
