"""The folder of one runner, and what the runner may read.

    <work root>/<function>-<random>/
        lib/    our files that run in it: a copy, so that no runner can change another's
        in/     the input of the job that runs: readable for the runner, not writable
        home/   HOME, the runner's own        tmp/  TMPDIR, likewise
        out/    outputs, one folder per job, made by the runner, moved away by the agent

Making or removing a folder takes 0.15 ms on a common file system, as long as a round trip to Redis; hence no folder for
each input.

Names are short: TMPDIR carries the sockets of `multiprocessing`, whose paths must stay under 108 bytes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import tidemill.handler
import tidemill_workers.runner
from tidemill.record.outputs import safe_name

from . import outputs

# systemd keeps this range for users that exist only while a service runs; nobody owns files under them.
_UIDS = range(61184, 65520)
_NAME_BYTES = 255
_uids_in_use: set[int] = set()
_uids_lock = threading.Lock()


def make_work_dir(work_root: Path, function: str) -> Path:
    """A fresh work folder with our files in it."""
    work_root.mkdir(parents=True, exist_ok=True)
    work = work_root.resolve() / f"{function[:12]}-{secrets.token_hex(4)}"
    work.mkdir(mode=0o711)
    for name, mode in (("lib", 0o755), ("in", 0o755), ("home", 0o700), ("tmp", 0o700), ("out", 0o700)):
        folder = work / name
        folder.mkdir()
        folder.chmod(mode)  # whatever the umask is
    sources = [*Path(tidemill_workers.runner.__path__[0]).glob("*.py"), Path(str(tidemill.handler.__file__))]
    for source in sources:
        target = work / "lib" / source.name
        shutil.copyfile(source, target)
        target.chmod(0o644)
    return work


def remove_tree(path: Path) -> bool:
    """Removes what a function may have filled in any way; False when something could not be removed."""

    def open_up(function: object, name: str, info: tuple[type[BaseException], BaseException, TracebackType]) -> None:
        failed.append(name)

    failed: list[str] = []
    shutil.rmtree(path, onerror=open_up)
    if failed and os.path.lexists(path):
        # A folder that its owner made unreadable: ours to open, since we are its owner or root.
        _open_folder(path)
        for _, folders, _, at in os.fwalk(path, follow_symlinks=False):
            for name in folders:
                _open_folder(name, at)
        failed.clear()
        shutil.rmtree(path, onerror=open_up)
    return not os.path.lexists(path)


def _open_folder(name: str | Path, at: int | None = None) -> None:
    """Makes a folder ours to read and write. No link is followed: what is beside or above it may change meanwhile."""
    with contextlib.suppress(OSError):  # then it cannot be removed, and that is told
        fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        try:
            os.chmod(f"/proc/self/fd/{fd}", 0o700)
        finally:
            os.close(fd)


def place_input(source: Path, folder: Path, name: str, gid: int | None) -> Path:
    """The input as `folder/<name>`, readable but not writable: a hard link where possible, else a copy.

    `gid` is the runner's group when it is another user. The folder is empty before.
    """
    given = Path(name).name.replace("\0", "")
    if given in ("", "..") or len(os.fsencode(given)) > _NAME_BYTES:
        given = safe_name(name)  # S3 allows four times as much as a file system
    target = folder / given
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    target.chmod(0o444 if gid is None else 0o440)
    if gid is not None:
        os.chown(target, -1, gid)
    return target


def remove_inputs(folder: Path) -> bool:
    """Takes away what `place_input` made. False when it cannot: a function of the agent's own user may have closed the
    folder, or without Landlock have made a folder in it. Its runner cannot have another job then."""
    try:
        for name in os.listdir(folder):
            os.unlink(folder / name)
    except OSError:
        return False
    return True


def readable_roots(python: Path, work_root: Path) -> list[Path]:
    """The folders that an interpreter needs: its virtual environment and its installation.

    Packages may have written into the environment (wheels can place any file there), so where it points is not simply
    believed: a folder counts as an installation only when it holds a standard library, and never when our state lies
    in it.
    """
    roots = []
    environment = python.parent.parent
    if (environment / "pyvenv.cfg").is_file():
        roots.append(environment)
    bases = [python.resolve().parent.parent, *_homes(environment / "pyvenv.cfg")]
    roots += [base for base in bases if _has_standard_library(base)]
    protected = work_root.resolve()
    return [root for root in _unique(roots) if root != Path("/") and not protected.is_relative_to(root.resolve())]


def _has_standard_library(base: Path) -> bool:
    places = (base / lib / f"python3.{minor}" for lib in ("lib", "lib64") for minor in range(8, 40))
    return any((place / "os.py").is_file() for place in places)


def _homes(configuration: Path) -> list[Path]:
    try:
        lines = configuration.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    pairs = (line.partition("=") for line in lines)
    return [Path(value.strip()).resolve().parent for key, _, value in pairs if key.strip().lower() == "home"]


def _unique(paths: Iterable[Path]) -> list[Path]:
    return list(dict.fromkeys(paths))


def take_uid() -> int | None:
    """A user id for one runner, None when this process cannot give one away."""
    if os.geteuid() != 0:
        return None
    with _uids_lock:
        free = [uid for uid in _UIDS if uid not in _uids_in_use]
        if not free:
            return None
        uid = secrets.choice(free)
        _uids_in_use.add(uid)
        return uid


def return_uid(uid: int | None) -> None:
    """The runner is gone; the id may serve again."""
    with _uids_lock:
        _uids_in_use.discard(-1 if uid is None else uid)


def is_real_folder(path: Path) -> bool:
    """Whether it is a folder itself, not a link to one."""
    return stat.S_ISDIR(path.lstat().st_mode)


def move_outputs(produced: Path, target: Path) -> str | None:
    """Takes the outputs out of the function's reach; what is wrong with them, or None."""
    try:
        if not is_real_folder(produced):
            return "The function replaced its output folder by something else"
        try:
            os.rename(produced, target)
        except OSError:
            _copy_outputs(produced, target)
        if not is_real_folder(target):
            target.unlink()
            return "The function replaced its output folder by something else"
    except (OSError, outputs.OutputRefused) as error:
        return f"The outputs cannot be read: {error}"
    return None


def _copy_outputs(produced: Path, target: Path) -> None:
    """For a work root on another file system than the job's folder."""
    target.mkdir(exist_ok=True)
    for file in outputs.collect(produced).files:
        path = target / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with file.open() as source, path.open("xb") as copy:
            shutil.copyfileobj(source, copy)
