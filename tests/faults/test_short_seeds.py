"""Three short runs of the lab, and each seed that failed once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults import lab, report, toxiproxy
from tests.faults.options import choices
from tests.faults.schedule import chosen

REGRESSIONS = [
    line.split("#")[0].split()
    for line in (Path(__file__).parent / "regressions.txt").read_text().splitlines()
    if line.split("#")[0].strip()
]
SHORT = [
    ["--seed", "101", "--jobs", "40", "--minutes", "0.35", "--gap", "1.5", "--faults", "kill,pause,failpoints"],
    ["--seed", "113", "--jobs", "40", "--minutes", "0.35", "--gap", "1.5", "--faults", "redis,store,events,kill"],
    ["--seed", "103", "--jobs", "40", "--minutes", "0.35", "--gap", "1.2", "--faults", "all"],
]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("arguments", [*SHORT, *REGRESSIONS], ids=lambda arguments: "-".join(arguments[1:2]))
def test_nothing_is_lost_doubled_torn_or_stuck(arguments: list[str], tmp_path: Path) -> None:
    [choice] = choices([*arguments, "--keep", str(tmp_path)])
    if "connection" in chosen(choice.faults):
        try:
            toxiproxy.binary()
        except toxiproxy.ToolMissing as error:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip(str(error))
    result = lab.run(choice, print)
    assert result.verdict.clean, report.sentences(result)
    assert result.verdict.facts["accepted"] == choice.jobs
