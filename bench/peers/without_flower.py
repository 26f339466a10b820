"""`tidemill up` without Flower: `python -m bench.peers.without_flower --state-dir DIR --pools FILE`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidemill.local.supervisor import Service
from tidemill.local.system import Addresses, LocalSystem, Options, default_services


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--pools", type=Path, required=True)
    given = parser.parse_args()
    options = Options(state_dir=given.state_dir, pools_file=given.pools)
    LocalSystem(options, compose=_services).run(on_ready=lambda addresses: print("Ready.", flush=True))


def _services(addresses: Addresses, env: Mapping[str, str]) -> Sequence[Service]:
    return [service for service in default_services(addresses, env) if service.name != "flower"]


if __name__ == "__main__":
    main()
