"""Deploying a function: everything that can be wrong with it is said now, not when its first job fails.

The order makes a crash harmless: the code archive, then the spec in the platform bucket, then the ledger's mirror. The
record in the bucket changes by If-Match, and the mirror is brought to what stands there (`tidemill.record.mirror`), so
several gateways may change one function at the same moment.
"""

from __future__ import annotations

import secrets
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

import structlog

from tidemill.errors import InvalidSpec, NotFound, TidemillError
from tidemill.ledger.api import Ledger
from tidemill.models import FunctionRecord, FunctionSpec, Trigger, place_of, revision_of
from tidemill.models.archive import MAX_BYTES, pack
from tidemill.models.files import load_function
from tidemill.models.pool import Where
from tidemill.record import Record, keys
from tidemill.record.damage import CODE
from tidemill.record.mirror import mirror_function
from tidemill.store import Store
from tidemill_gateway import params
from tidemill_gateway.auth import Owner

_MAX_FILES = 20_000
log = structlog.get_logger(__name__)


class Deployer:
    """Puts functions in place and removes them. One for each process."""

    def __init__(self, ledger: Ledger, record: Record, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._ledger = ledger
        self._record = record
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()  # two deploys at once could overlap each other's triggers unseen

    def deploy(self, spec: FunctionSpec, code: Path | None, owner: Owner) -> FunctionRecord:
        """Check a function and put it in place. An unchanged one is the same revision, and no record is written; its
        failed starts are forgotten.

        Args:
            code: its archive (tar.gz), or None to keep the code that is deployed.

        Raises:
            InvalidSpec, NotAllowed: with the remedy.
            StoreUnavailable, LedgerUnavailable: it may be half in place; deploy it again.
        """
        with self._lock:
            others = self._others(spec.name)
            self._check(spec, others, owner)
            uploaded = self._upload(spec, code, self._current(spec.name))
            unchanged = False

            def changed(old: FunctionRecord | None) -> FunctionRecord:
                nonlocal unchanged
                sha256, size = uploaded or _kept_code(spec, old)
                revision = revision_of(spec, sha256)
                if old is not None and old.deleted_at is None and old.revision == revision and old.spec == spec:
                    unchanged = True
                    return old
                self._make_buckets(spec)
                since, places, replayed = self._begin(spec, old)
                return FunctionRecord(
                    spec=spec,
                    revision=revision,
                    code_sha256=sha256,
                    code_size=size,
                    owner=owner.name,
                    deployed_at=self._clock(),
                    triggers_since=since,
                    places_since=places,
                    replayed=replayed,
                )

            record = self._record.change_function(spec.name, changed)
            assert record is not None
            if code is not None and not unchanged:  # retention may have taken it for an old one's a moment ago
                self._record.put_code(code, record.code_sha256)
            if any(failed.function == spec.name for failed in self._ledger.start_failures()):
                self._ledger.put_function(record)  # forgets them
            mirror_function(self._ledger, self._record, spec.name)
        if not unchanged:
            log.info(
                "function.deployed",
                function=spec.name,
                revision=record.revision,
                owner=owner.name,
                code_bytes=record.code_size,
            )
        return record

    def _current(self, name: str) -> FunctionRecord | None:
        """The function as the bucket has it. A damaged record is mended with the ledger's mirror, if there is one."""
        try:
            return self._record.get_function(name)
        except TidemillError as error:
            if error.error_code != CODE:
                raise
            mirrored = self._ledger.function(name)
            return self._record.change_function(name, lambda old: old or mirrored) if mirrored is not None else None

    def _others(self, name: str) -> dict[str, FunctionRecord]:
        """The other functions, as the bucket has them: a ledger that is being restored lacks some, and an overlap that
        nobody saw would stay."""
        found = self._record.functions()
        return {record.name: record for record in found if record.name != name and record.deleted_at is None}

    def deploy_folder(self, folder: Path, owner: Owner) -> FunctionRecord:
        """Deploy a function from its folder; raises as `deploy`."""
        loaded = load_function(folder)
        with tempfile.TemporaryDirectory(prefix="tidemill-deploy-") as scratch:
            archive = Path(scratch, "code.tar.gz")
            with archive.open("xb") as into:
                pack(loaded.folder, into)
            return self.deploy(loaded.spec, archive, owner)

    def replay(self, name: str, places: Iterable[str]) -> FunctionRecord:
        """Let the function's triggers take objects below these places (`bucket/prefix`) whatever their age, from now
        on and for good: so each listing finds them, also one after a rebuild, until their jobs are done.

        Raises:
            NotFound: there is no such function.
            StoreUnavailable, LedgerUnavailable: it may be half done; call again.
        """
        wanted = set(places)

        def changed(old: FunctionRecord | None) -> FunctionRecord | None:
            if old is None or old.deleted_at is not None:
                return None
            return old.model_copy(update={"replayed": _covering({*old.replayed, *wanted})})

        with self._lock:
            new = self._record.change_function(name, changed)
            if new is None:
                raise NotFound(f"there is no function {name}")
            mirror_function(self._ledger, self._record, name)
        log.info("function.replayed", function=name, places=list(new.replayed))
        return new

    def remove(self, name: str) -> FunctionRecord:
        """Leave a tombstone, and end the triggers. Placement ends what is queued; what runs may finish. A delete that
        broke off after its tombstone is completed.

        Raises:
            NotFound: there is no such function.
            StoreUnavailable, LedgerUnavailable: it may be half gone; delete it again.
        """

        def changed(old: FunctionRecord | None) -> FunctionRecord | None:
            if old is None or old.deleted_at is not None:
                return old
            return old.model_copy(update={"deleted_at": self._clock()})

        with self._lock:
            old = self._record.get_function(name)
            if old is None or (old.deleted_at is not None and self._ledger.function(name) is None):
                raise NotFound(f"there is no function {name}")
            gone = self._record.change_function(name, changed)
            if gone is None:
                raise NotFound(f"there is no function {name}")
            mirror_function(self._ledger, self._record, name)
        log.info("function.deleted", function=name)
        return gone

    # -- checks --------------------------------------------------------------------------------------------------
    def _check(self, spec: FunctionSpec, others: dict[str, FunctionRecord], owner: Owner) -> None:
        if keys.function(spec.name).startswith(keys.CODE):
            raise InvalidSpec(
                f"the name `{spec.name}` is taken: code archives lie under it in the platform bucket",
                hint="Give the function another name.",
            )
        if spec.secrets:
            raise InvalidSpec(
                f"{spec.name}: secrets are not supported yet",
                hint="Leave `secrets` out; give what is not secret through `env` or `params`.",
            )
        if spec.image is not None and not self._has_cluster():
            raise InvalidSpec(
                f"{spec.name}: an image needs a pool in a cluster, and there is none",
                hint="Leave `image` out, or apply a pool with `where: {kubernetes: ...}` first.",
            )
        params.check_rules(spec.params)
        buckets = [(f"trigger {t.bucket}/{t.prefix}", t.bucket) for t in spec.trigger]
        if spec.output is not None:
            buckets.append((f"output {spec.output.bucket}/{spec.output.prefix}", spec.output.bucket))
        for what, bucket in buckets:
            if bucket == self._record.bucket:
                raise InvalidSpec(
                    f"{spec.name}: {what} lies in the platform bucket",
                    hint="Use a bucket of your own; the platform bucket holds only what Tidemill itself keeps.",
                )
            owner.check_bucket(bucket)
        for trigger in spec.trigger:
            for name, other in sorted(others.items()):
                for theirs in other.spec.trigger:
                    _check_overlap(spec.name, trigger, name, theirs)

    def _has_cluster(self) -> bool:
        return any(isinstance(pool.spec.where, Where) for pool in self._ledger.pools().values())

    def _upload(self, spec: FunctionSpec, code: Path | None, old: FunctionRecord | None) -> tuple[str, int] | None:
        if code is None:
            return None
        _check_archive(code, spec)
        return self._record.put_code(code, old.code_sha256 if old is not None and old.deleted_at is None else None)

    # -- effects -------------------------------------------------------------------------------------------------
    def _make_buckets(self, spec: FunctionSpec) -> None:
        wanted = {t.bucket for t in spec.trigger} | ({spec.output.bucket} if spec.output is not None else set())
        for bucket in sorted(wanted):
            if not self._store.bucket_exists(bucket):
                self._store.ensure_bucket(bucket)
                log.info("bucket.created", bucket=bucket, function=spec.name)

    def _begin(self, spec: FunctionSpec, old: FunctionRecord | None) -> tuple[float, dict[str, float], tuple[str, ...]]:
        """When the triggers began, by the store's clock, and where older objects count too. A trigger whose place stays
        keeps both: an object that came a moment before the deploy, and is in no listing yet, must not fall between the
        old and the new."""
        kept: dict[str, float] = {}
        if old is not None and old.deleted_at is None:
            kept = {place_of(trigger): old.since(trigger) for trigger in old.spec.trigger}
        places = [place_of(trigger) for trigger in spec.trigger]
        now = self._store_time() if set(places) - set(kept) else self._clock()
        staying = tuple(place for place in places if place in kept)
        replayed = tuple(p for p in old.replayed if p.startswith(staying)) if old is not None and staying else ()
        return now, {place: kept.get(place, now) for place in places}, replayed

    def _store_time(self) -> float:
        """Ask the store what time it is, through an object: objects are compared with it, and clocks differ."""
        key = self._record.payload_key(secrets.token_hex(16), "clock")
        self._store.put(self._record.bucket, key, b"")
        info = self._store.head(self._record.bucket, key)
        self._store.delete(self._record.bucket, key)
        return float(info.last_modified) if info is not None else self._clock()


def _kept_code(spec: FunctionSpec, old: FunctionRecord | None) -> tuple[str | None, int]:
    if old is not None and old.code_sha256 is not None:
        return old.code_sha256, old.code_size
    if spec.handler is not None:
        raise InvalidSpec(
            f"{spec.name}: its code is missing",
            hint="Send the folder as a tar.gz in the part `code`; `tidemill function deploy FOLDER` does.",
        )
    return None, 0


def _covering(places: Iterable[str]) -> tuple[str, ...]:
    """The places without those that lie below another one."""
    kept: list[str] = []
    for place in sorted(places):  # a shorter one comes before what it covers
        if not place.startswith(tuple(kept)):
            kept.append(place)
    return tuple(kept)


def _check_overlap(name: str, mine: Trigger, other: str, theirs: Trigger) -> None:
    if mine.overlaps(theirs) and not (mine.shared and theirs.shared):
        raise InvalidSpec(
            f"{name}: the trigger {mine.bucket}/{mine.prefix} overlaps {theirs.bucket}/{theirs.prefix} of {other}",
            hint="Use another prefix or suffix, or write `shared: true` in both triggers to start both functions.",
        )


def _check_archive(code: Path, spec: FunctionSpec) -> None:
    """A look at the archive's table, without unpacking: agents refuse links and foreign paths too, but much later."""
    total, count, names = 0, 0, set()
    try:
        with tarfile.open(code, mode="r|gz") as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
                    raise InvalidSpec(f"the code archive holds {member.name!r}: only plain files inside it are taken")
                names.add(path.as_posix())
                total, count = total + member.size, count + 1
                if total > MAX_BYTES or count > _MAX_FILES:
                    raise InvalidSpec(
                        f"the code archive unpacks to more than {MAX_BYTES // 2**20} MiB or {_MAX_FILES} files",
                        hint="Keep weights and data out of it: in a bucket, or in a folder that agents may read.",
                    )
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise InvalidSpec(
            f"the code archive is no tar.gz: {error}", hint="Send a gzipped tar of the folder."
        ) from error
    wanted = spec.environment.requirements
    if wanted is not None and PurePosixPath(wanted).as_posix() not in names:
        raise InvalidSpec(
            f"{spec.name}: environment.requirements names {wanted}, which is not in the code archive",
            hint="Put the file into the function's folder.",
        )
