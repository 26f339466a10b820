"""What a local system keeps on disk."""

import json
import os
import stat
from pathlib import Path

import pytest

from tidemill.local import state
from tidemill.local.errors import AlreadyRunning, LocalError, NotRunning
from tidemill.local.state import StateDir


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "a folder with ü and spaces" / ("long" * 40)


def test_the_folder_and_the_secrets_are_private_and_the_secrets_stay(folder: Path) -> None:
    first = StateDir(folder)
    first.acquire()
    made = first.credentials()
    first.release()
    assert (mode(folder), mode(folder / "credentials.json")) == (0o700, 0o600)
    again = StateDir(folder)
    again.acquire()
    assert again.credentials() == made
    again.release()
    values = json.loads((folder / "credentials.json").read_text())
    assert len(set(values.values())) == len(values)
    assert values["secret_key"] not in repr(made)


def test_a_second_holder_is_refused_and_told_who_has_it(folder: Path) -> None:
    first, second = StateDir(folder), StateDir(folder)
    first.acquire()
    with pytest.raises(AlreadyRunning) as refused:
        second.acquire()
    assert refused.value.pid == os.getpid()
    assert str(os.getpid()) in str(refused.value)
    first.release()
    second.acquire()
    assert StateDir(folder).holder() == os.getpid()
    second.release()
    assert StateDir(folder).holder() is None


def test_asking_for_the_holder_never_takes_the_lock_away(folder: Path) -> None:
    ours = StateDir(folder)
    for _ in range(50):
        assert StateDir(folder).holder() is None
        ours.acquire()
        assert StateDir(folder).holder() == os.getpid()
        ours.release()


def test_a_folder_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match="cannot be used"):
        StateDir(tmp_path / "file" / "state").acquire()


def test_runtime_is_only_true_while_somebody_holds_the_folder(folder: Path) -> None:
    ours = StateDir(folder)
    ours.acquire()
    with pytest.raises(NotRunning, match="still starting"):
        StateDir(folder).runtime()
    ours.write_runtime({"url": "here"})
    assert mode(folder / "runtime.json") == 0o600
    assert StateDir(folder).runtime() == {"url": "here"}
    ours.release()
    with pytest.raises(NotRunning):
        StateDir(folder).runtime()


def test_ports_are_a_wish_and_a_damaged_file_is_none(folder: Path) -> None:
    ours = StateDir(folder)
    ours.acquire()
    assert ours.ports() == {}
    ours.keep_ports({"redis": 1234})
    assert ours.ports() == {"redis": 1234}
    (folder / "ports.json").write_text("{")
    assert ours.ports() == {}
    ours.release()


def test_the_profile_belongs_to_the_last_and_only_its_own_end_removes_it() -> None:
    state.write_profile("http://one", "t1")
    state.write_profile("http://two", "t2")
    assert mode(state.profile_path()) == 0o600
    state.remove_profile("http://one", "t1")
    assert json.loads(state.profile_path().read_text()) == {"url": "http://two", "token": "t2"}
    state.remove_profile("http://two", "t2")
    assert not state.profile_path().exists()
    state.remove_profile("http://two", "t2")


def test_the_environment_chooses_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state.default_state_dir() == tmp_path / "tidemill"
    monkeypatch.setenv("TIDEMILL_STATE_DIR", str(tmp_path / "mine"))
    assert state.default_state_dir() == tmp_path / "mine"


def test_the_first_up_without_pools_gets_one_and_a_later_one_only_its_own(tmp_path: Path) -> None:
    from tidemill.models.files import load_pools

    first = StateDir(tmp_path / "first")
    first.acquire()
    made = first.first_pools()
    assert made is not None
    assert [pool.name for pool in load_pools(made)] == ["local"]
    first.credentials()
    assert first.first_pools() == made
    first.release()

    other = StateDir(tmp_path / "other")
    other.acquire()
    other.credentials()  # an `up` with --pools came before
    assert other.first_pools() is None
    other.release()
