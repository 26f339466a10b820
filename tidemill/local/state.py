"""What a local system keeps on disk: the lock, the credentials, the addresses while it runs, and the profile.

    <state folder>/            mode 0700; $XDG_STATE_HOME/tidemill, --state-dir or TIDEMILL_STATE_DIR
        lock                   locked (flock) by the running `up`, which writes its process id into it
        credentials.json       made at first start, mode 0600
        ports.json             the ports of the last run, taken again while they are free: addresses stay stable
        runtime.json           addresses and secrets while the system is up, mode 0600
        logs/  valkey/  seaweed/

The profile (`$XDG_CONFIG_HOME/tidemill/profile.json`) tells client and command line where the system is. Two systems
may run at once: the one that started last writes it, and each removes it at its end only if it is still its own.
"""

import fcntl
import json
import os
import secrets
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, SecretStr

from tidemill.local.errors import AlreadyRunning, LocalError, NotRunning


def default_state_dir() -> Path:
    """`TIDEMILL_STATE_DIR`, else `tidemill` below `$XDG_STATE_HOME` or `~/.local/state`."""
    if chosen := os.environ.get("TIDEMILL_STATE_DIR"):
        return Path(chosen)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tidemill"


def profile_path() -> Path:
    """Where client and command line look for `{"url", "token"}`."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tidemill" / "profile.json"


class Credentials(BaseModel):
    """The secrets of one installation. They are made once, so that stored data and profiles stay usable."""

    model_config = ConfigDict(frozen=True)

    redis_password: SecretStr
    access_key: str
    secret_key: SecretStr
    token: SecretStr
    hook_secret: SecretStr
    flower_user: str
    flower_password: SecretStr

    @classmethod
    def generate(cls) -> "Credentials":
        """New ones, of letters and digits only: they go into addresses, shells and configuration files."""
        return cls(
            redis_password=SecretStr(secrets.token_hex(24)),
            access_key="TM" + secrets.token_hex(9).upper(),
            secret_key=SecretStr(secrets.token_hex(20)),
            token=SecretStr("tm_" + secrets.token_hex(24)),
            hook_secret=SecretStr(secrets.token_hex(24)),
            flower_user="tidemill",
            flower_password=SecretStr(secrets.token_hex(12)),
        )


_FIRST_POOLS = """\
# Applied at each `tidemill up` without --pools. Edit it, or bring your own: tidemill up --pools FILE
pools:
  - name: local
    slots: {slots}                     # most functions at once
    agents: {{min: 0, max: 1, start: 2s}}
    idle_timeout: 60s
"""


class StateDir:
    """The state folder. Anybody may read; `acquire` makes it ours until `release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock: int | None = None

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def acquire(self) -> None:
        """Makes the folder and locks it. Raises `AlreadyRunning` with the process that has it, `LocalError`."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.chmod(0o700)
            self.logs.mkdir(mode=0o700, exist_ok=True)
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise LocalError(
                f"the state folder {self.path} cannot be used: {error.strerror}", hint="Name another with --state-dir."
            ) from error
        give_up = time.monotonic() + 2.0
        while not _lock_now(lock):
            # Without a holder it was only somebody who asked, at this very moment.
            pid = self.holder()
            if pid is not None or time.monotonic() >= give_up:
                os.close(lock)
                raise AlreadyRunning(f"a Tidemill is already up on {self.path} (process {pid})", pid=pid or 0)
            time.sleep(0.01)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock = lock

    def release(self) -> None:
        """Removes what says that the system runs, and gives the folder back."""
        if self._lock is None:
            return
        (self.path / "runtime.json").unlink(missing_ok=True)
        os.ftruncate(self._lock, 0)
        os.close(self._lock)
        self._lock = None

    def holder(self, wait_s: float = 1.0) -> int | None:
        """The process id of the system that is up here, or None."""
        give_up = time.monotonic() + wait_s
        while self._is_locked():
            text = (self.path / "lock").read_text().strip()
            if text:
                return int(text)
            # It has the lock and is about to write its number.
            if time.monotonic() >= give_up:
                raise LocalError(f"somebody holds {self.path / 'lock'} without saying who")
            time.sleep(0.01)
        return None

    def credentials(self) -> Credentials:
        """Those of this folder; made at first use (by the holder of the lock)."""
        path = self.path / "credentials.json"
        if path.exists():
            return Credentials.model_validate_json(path.read_bytes())
        made = Credentials.generate()
        write_private(path, {name: _plain(value) for name, value in made})
        return made

    def first_pools(self) -> Path | None:
        """The pools file of somebody who named none: made at the very first `up`, theirs to edit from then on."""
        path = self.path / "pools.yaml"
        if not path.exists():
            if (self.path / "credentials.json").exists():
                return None  # not the first `up`: they brought pools of their own
            path.write_text(_FIRST_POOLS.format(slots=os.cpu_count() or 1))
        return path

    def ports(self) -> dict[str, int]:
        """The ports of the last run by name; empty at first, and when the file was damaged: they are only a wish."""
        try:
            found = json.loads((self.path / "ports.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return {str(name): port for name, port in found.items() if isinstance(port, int)}

    def keep_ports(self, ports: Mapping[str, int]) -> None:
        write_private(self.path / "ports.json", ports)

    def runtime(self) -> dict[str, Any]:
        """What the running system says of itself. Raises `NotRunning`."""
        if self.holder() is not None:
            try:
                found: dict[str, Any] = json.loads((self.path / "runtime.json").read_bytes())
            except FileNotFoundError:
                raise NotRunning(f"the Tidemill on {self.path} is still starting, or just ending") from None
            return found
        raise NotRunning(f"no Tidemill is up on {self.path}")

    def last_runtime(self) -> dict[str, Any] | None:
        """What a system that was killed left behind, for the holder of the lock to clean up."""
        try:
            found: dict[str, Any] = json.loads((self.path / "runtime.json").read_bytes())
        except (OSError, ValueError):
            return None
        return found

    def write_runtime(self, runtime: Mapping[str, Any]) -> None:
        write_private(self.path / "runtime.json", runtime)

    def _is_locked(self) -> bool:
        if self._lock is not None:
            return True
        try:
            lock = os.open(self.path / "lock", os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            # A shared lock, so that two who only ask do not see each other.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False


def _lock_now(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_private(path: Path, content: Mapping[str, Any]) -> None:
    """Replaces a JSON file as a whole, readable by nobody else at any moment."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=2) + "\n")
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def write_profile(url: str, token: str) -> None:
    """Points client and command line at this system."""
    write_private(profile_path(), {"url": url, "token": token})


def remove_profile(url: str, token: str) -> None:
    """Removes the profile if it still points at this system."""
    try:
        found = json.loads(profile_path().read_bytes())
    except (OSError, ValueError):
        return
    if found == {"url": url, "token": token}:
        profile_path().unlink(missing_ok=True)


def _plain(value: object) -> object:
    return value.get_secret_value() if isinstance(value, SecretStr) else value
