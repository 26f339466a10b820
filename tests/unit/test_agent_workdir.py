"""An agent leaves no folder behind, also when it is killed."""

from __future__ import annotations

from pathlib import Path

from tidemill_workers.agent.workdir import remove_leftovers, work_folder


def test_the_folder_is_readable_for_others_and_gone_at_the_end(tmp_path: Path) -> None:
    with work_folder(tmp_path / "work") as folder:
        (folder / "x").write_text("x")
        assert folder.stat().st_mode & 0o777 == 0o755
    assert not folder.exists()


def test_a_killed_agents_folder_goes_with_the_next_start_and_a_living_ones_stays(tmp_path: Path) -> None:
    dead = tmp_path / "tidemill-agent-dead"
    dead.mkdir()
    (dead / ".lock").touch()
    (dead / "input").write_text("x")
    link = tmp_path / "tidemill-agent-link"
    link.symlink_to(tmp_path)
    with work_folder(tmp_path) as living:
        assert not dead.exists()
        assert remove_leftovers(tmp_path) == 0
        assert living.exists()
    assert link.is_symlink()
