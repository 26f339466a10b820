"""An agent whose work folder somebody removes: it can run nothing, so it must not keep what others could run."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from tidemill.models import PoolSpec
from tidemill.record import Record
from tidemill.settings import AgentSettings
from tidemill.testing import MemoryLedger, MemoryStore
from tidemill_workers.agent.service import Agent


def test_an_agent_whose_work_folder_is_gone_takes_no_more_jobs_and_ends(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    ledger.begin_epoch(1, 0)
    record = Record(MemoryStore(), sleep=lambda seconds: None)
    record.prepare()
    ended = threading.Event()
    settings = AgentSettings(heartbeat_s=0.05)
    agent = Agent("near-1", PoolSpec(name="near"), ledger, record, settings, tmp_path, ended.set)
    agent.start()
    try:
        assert not ended.wait(0.3), "it is well"
        assert agent.report().state == "ready"
        shutil.rmtree(tmp_path / "jobs")
        assert ended.wait(10)
        assert agent.report().state == "draining"
    finally:
        agent.stop()
