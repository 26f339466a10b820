"""Code archives: up by their SHA-256, down again only as the files that were packed.

An archive is made by a client, so nothing in it is trusted: links, devices, absolute names and `..` are refused (our
packer makes none of them), and its unpacked size is bounded before the bytes are written.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import tarfile
import zlib
from pathlib import Path

from tidemill.errors import InvalidSpec
from tidemill.models.archive import MAX_BYTES
from tidemill.record import keys
from tidemill.store.api import Store

_MAX_FILES = 100_000
_NAMES_CLASH = frozenset({errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EILSEQ})


def put_code(store: Store, bucket: str, archive: Path, in_use: str | None = None) -> tuple[str, int]:
    """Store an archive; give its SHA-256 and its size in bytes. One that is there and not `in_use` is written again:
    retention may be about to take it for old."""
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != in_use or store.head(bucket, keys.code(digest)) is None:
        store.put(bucket, keys.code(digest), archive, content_type="application/gzip")
    return digest, archive.stat().st_size


def fetch_code(store: Store, bucket: str, sha256: str, into: Path) -> None:
    """Download an archive and unpack it into a folder, which is made when it is missing.

    Raises:
        NotFound: there is no such archive.
        InvalidSpec: its content is not what its name says, or it holds what an archive must not.
    """
    into.mkdir(parents=True, exist_ok=True)
    archive = into / f".code-{secrets.token_hex(8)}"
    try:
        done = store.download(bucket, keys.code(sha256), archive)
        if done.sha256 != sha256:
            raise InvalidSpec(
                f"the code archive {sha256} has other content ({done.sha256})", hint="Deploy the function again."
            )
        unpack(archive, into)
    finally:
        archive.unlink(missing_ok=True)


def unpack(archive: Path, into: Path, *, max_bytes: int = MAX_BYTES, max_files: int = _MAX_FILES) -> None:
    """Unpack a tar.gz of plain files and folders. Raises `InvalidSpec` for anything else in it."""
    total = count = 0
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                total, count = total + member.size, count + 1
                if total > max_bytes or count > max_files:
                    raise _refused(f"more than {max_bytes // 2**20} MiB or {max_files} files")
                if not (member.isreg() or member.isdir()) or member.issparse():
                    raise _refused(f"{member.name[:200]!r}, which is neither a file nor a folder")
                _write(tar, member, _inside(into, member.name))
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno in _NAMES_CLASH:
            raise _refused(f"names that cannot lie beside each other on a disk ({error})") from error
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's trouble, not the archive's
        raise InvalidSpec(f"the code archive is damaged: {error}", hint="Deploy the function again.") from error


def _inside(into: Path, name: str) -> Path:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise _refused(f"{name[:200]!r}, which lies outside its folder")
    return into.joinpath(*parts)


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Write one member. Not `tar.extract(filter=)`, which Python has only since 3.11.4 (Debian 12 has 3.11.2)."""
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    source = tar.extractfile(member)
    if source is None:
        raise _refused(f"{member.name[:200]!r}, which has no content")
    with source, target.open("wb") as file:
        shutil.copyfileobj(source, file)
    target.chmod(0o644 | (member.mode & 0o111))
    os.utime(target, (member.mtime, member.mtime))


def _refused(what: str) -> InvalidSpec:
    return InvalidSpec(
        f"the code archive holds {what}", hint="Pack it with `tidemill function deploy`: plain files in one folder."
    )
