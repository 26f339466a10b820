"""Settings of all services: `TIDEMILL_` and nested names (`TIDEMILL_REDIS__URL`), or the TOML file that
`TIDEMILL_CONFIG` names. Only entry points read them; everything else is given values.

The docstring of each field says its unit, its default and its effect; docs/reference/settings.md is made from them.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, frozen=True)


class RedisSettings(_Group):
    url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    """Address of Redis or Valkey with its password. Ledger and doorbells live there."""
    prefix: str = "tm:"
    """Put before every key, so that several installations can share one server."""


class StoreSettings(_Group):
    endpoint: str = "http://127.0.0.1:9000"
    """Address of the S3 store."""
    access_key: str = ""
    """Access key of the store."""
    secret_key: SecretStr = SecretStr("")
    """Secret key of the store."""
    region: str = "us-east-1"
    """Region that requests are signed for."""
    bucket: str = "tidemill"
    """The platform bucket: everything of ours lies there. Excluded from every trigger."""
    name: str = "local"
    """Name of the store: part of each job's identity and of the webhook's path. Never change it."""
    public_endpoint: str | None = None
    """Address that presigned links carry, when clients reach the store under another one. Default: `endpoint`."""


class GatewaySettings(_Group):
    host: str = "127.0.0.1"
    """Address that the HTTP API listens on."""
    port: int = 8080
    """Port of the HTTP API."""
    token: SecretStr = SecretStr("")
    """Bearer token of the API. Empty: the gateway refuses to start."""
    hook_secret: SecretStr = SecretStr("")
    """Token of bucket events (bearer, or in the path). Empty: events are refused, listing alone finds objects."""
    max_upload: int = Field(default=5 * 2**30, ge=0)
    """Bytes: the largest payload of one API call. Larger files go through a presigned upload."""
    buckets: tuple[str, ...] = ("*",)
    """Shell patterns of the buckets that the owner of the token may use."""


class IntakeSettings(_Group):
    interval_s: float = Field(default=2.0, gt=0)
    """Seconds between two listings of the trigger prefixes, stretched so that listing takes at most 5 % of a core."""
    queue: int = Field(default=20_000, ge=1)
    """Events kept in memory between the webhook and the submit. More are dropped; the next listing finds them."""
    notify_arn: str = ""
    """Target that MinIO is to send bucket events to, as `arn:minio:sqs::tidemill:webhook`. Empty: register nothing."""
    canary_s: float = Field(default=180.0, ge=0)
    """Seconds between two test objects that show whether bucket events come, and how fast. 0: none."""
    max_hops: int = Field(default=8, ge=1)
    """A result that started another job carries a hop count; objects beyond this one start nothing."""


class AgentSettings(_Group):
    lease_s: float = Field(default=15.0, gt=0)
    """Seconds that an attempt stays an agent's without renewal. Also the time after which a silent agent is gone."""
    heartbeat_s: float = Field(default=2.0, gt=0)
    """Seconds between two heartbeats of an agent, and between two renewals of its leases."""
    inline_bytes: int = Field(default=64 * 1024, ge=0)
    """Bytes: outputs up to this size travel inside the commit record, larger ones through the attempt's prefix; so do
    small ones when a job has more than 1 MiB of them."""
    work_dir: Path | None = None
    """Folder for inputs, outputs and function code. Default: a private folder below the system's temporary one."""
    environments_dir: Path | None = None
    """Folder of the virtual environments. Default: `tidemill/environments` in the user's cache folder."""
    readable: tuple[Path, ...] = ()
    """More folders that functions may read, for example shared model weights."""
    log_bytes: int = Field(default=1024 * 1024, ge=1024)
    """Bytes of log kept of each job in the store."""
    drain_s: float = Field(default=25.0, ge=0)
    """Seconds that running jobs may take after the agent was told to stop. Then they are given back, uncounted."""


class PlacementSettings(_Group):
    tick_s: float = Field(default=1.0, gt=0)
    """Seconds after which placement looks again when nothing happens. Events wake it at once."""
    sweep_s: float = Field(default=2.0, gt=0)
    """Seconds between two sweeps for expired leases and lost doorbells."""
    leader_ttl_s: float = Field(default=6.0, gt=0)
    """Seconds of the leader's lease: another replica takes over after at most this long."""
    idle_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds that an idle runner, then an idle agent, stays, where neither function nor pool says its own."""
    value_of_time_usd_per_hour: float = Field(default=3.0, ge=0)
    """What an hour of waiting is worth under `objective: balanced`."""


class RetentionSettings(_Group):
    manifests: float = Field(default=90 * 86400.0, gt=0)
    """Seconds after which the manifest and the commit record of a finished job are deleted, if its input is gone or is
    another object now. While the input is listed they stay. Results in the platform bucket stay as long."""
    logs: float = Field(default=30 * 86400.0, gt=0)
    """Seconds that log files are kept."""
    payloads: float = Field(default=7 * 86400.0, gt=0)
    """Seconds that payloads of API calls are kept after their job has ended."""
    attempts: float = Field(default=86400.0, gt=0)
    """Seconds after which large outputs of attempts that did not win are deleted."""
    code: float = Field(default=30 * 86400.0, gt=0)
    """Seconds after which the code archive of an old revision is deleted, counted from the deploy that replaced it."""
    uploads: float = Field(default=86400.0, gt=0)
    """Seconds after which a multipart upload into the platform bucket counts as left behind, and is dropped."""
    jobs: float = Field(default=7 * 86400.0, gt=0)
    """Seconds that finished jobs stay in the ledger; their manifests stay in the store. The notes of failures, by which
    the ledger finds failed jobs again after a loss of Redis, are deleted after as long."""


class FlowerSettings(_Group):
    url: str | None = None
    """Address of Flower, shown by `tidemill status`."""
    port: int = 5555
    """Port that Flower listens on."""
    user: str = "tidemill"
    """User name of Flower's page."""
    password: SecretStr = SecretStr("")
    """Password of Flower's page."""


class LocalSettings(_Group):
    control: SecretStr | None = None
    """Address of the control socket of `tidemill up`: the local scaler starts and stops agents through it."""
    state_dir: Path | None = None
    """State folder of `tidemill up`."""


class Settings(BaseSettings):
    """All groups. `Settings()` reads the environment over the TOML file over the defaults."""

    model_config = SettingsConfigDict(
        env_prefix="TIDEMILL_", env_nested_delimiter="__", extra="ignore", use_attribute_docstrings=True, frozen=True
    )

    redis: RedisSettings = RedisSettings()
    store: StoreSettings = StoreSettings()
    gateway: GatewaySettings = GatewaySettings()
    intake: IntakeSettings = IntakeSettings()
    agent: AgentSettings = AgentSettings()
    placement: PlacementSettings = PlacementSettings()
    retention: RetentionSettings = RetentionSettings()
    flower: FlowerSettings = FlowerSettings()
    local: LocalSettings = LocalSettings()
    pools_file: Path | None = None
    """Pools that placement puts in place at its start; under `tidemill up` at its first start only."""
    functions_dir: Path | None = None
    """Folder of function folders that the gateway deploys at its start; under `tidemill up` at its first start only."""
    log_level: str = "info"
    """Least level of log lines: debug, info, warning or error."""
    log_json: bool = False
    """Write log lines as JSON."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        sources = [init_settings, env_settings]
        if path := os.environ.get("TIDEMILL_CONFIG"):
            sources.append(TomlConfigSettingsSource(settings_cls, toml_file=Path(path)))
        return tuple(sources)
