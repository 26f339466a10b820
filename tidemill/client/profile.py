"""Where the service is and which token opens it: arguments, then environment, then profile file, then the default.

The profile file (`tidemill/profile.json` in the user's configuration folder, mode 0600) is written by `tidemill up`.
Its token is sent only to the address that stands beside it, so an address given otherwise never learns it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidemill.errors import InvalidSpec

DEFAULT_URL = "http://127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class Profile:
    """An address without a slash at its end, and a token (empty: none)."""

    url: str
    token: str = ""

    def __repr__(self) -> str:
        return f"Profile(url={self.url!r}, token={'***' if self.token else ''!r})"


def profile_path(environ: Mapping[str, str] = os.environ) -> Path:
    """The profile file of this user, which need not exist."""
    config = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".config")
    return Path(config) / "tidemill" / "profile.json"


def resolve(url: str | None = None, token: str | None = None, environ: Mapping[str, str] = os.environ) -> Profile:
    """Give the address and the token to use.

    Raises:
        InvalidSpec: the profile file cannot be read, or the address is none.
    """
    chosen = url or environ.get("TIDEMILL_URL") or ""
    secret = token if token is not None else environ.get("TIDEMILL_TOKEN") or None
    saved = None if chosen and secret is not None else _read(profile_path(environ))
    if saved is not None:
        chosen = chosen or saved.url
        if secret is None and chosen.rstrip("/") == saved.url:
            secret = saved.token
    chosen = (chosen or DEFAULT_URL).rstrip("/")
    if not chosen.startswith(("http://", "https://")):
        raise InvalidSpec(
            f"{chosen!r} is not the address of a service.", hint=f"Write it with its scheme, as in {DEFAULT_URL}."
        )
    return Profile(chosen, secret or "")


def _read(path: Path) -> Profile | None:
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InvalidSpec(
            f"The profile {path} cannot be read: {error}",
            hint="Delete it and run `tidemill up` again, or set TIDEMILL_URL and TIDEMILL_TOKEN.",
        ) from error
    if not isinstance(data, dict) or not isinstance(data.get("url"), str):
        raise InvalidSpec(f"The profile {path} names no url.", hint="Delete it and run `tidemill up` again.")
    return Profile(data["url"].rstrip("/"), str(data.get("token") or ""))
