"""A `tidemill up` of the embedded servers and one dummy service, as a process that tests may kill.

    python -m tests.support.up STATE_DIR [--fail]

Prints one line of JSON for each event and one `{"what": "up"}` when it is ready. The dummy answers HTTP on the
gateway's port. With `--fail` it exits at once.
"""

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from tidemill.local.errors import AlreadyRunning, LocalError
from tidemill.local.ready import http_check
from tidemill.local.supervisor import Event, Service
from tidemill.local.system import Addresses, LocalSystem, Options

SERVER = (
    "import http.server as h, sys; "
    "h.test(h.SimpleHTTPRequestHandler, h.ThreadingHTTPServer, port=int(sys.argv[1]), bind='127.0.0.1')"
)


def compose(addresses: Addresses, env: Mapping[str, str]) -> list[Service]:
    argv = [sys.executable, "-c", SERVER, str(addresses.gateway_port)]
    return [
        Service("gateway", argv, env, cwd=addresses.state_dir / "logs", ready=http_check(addresses.gateway_port, "/"))
    ]


def broken(addresses: Addresses, env: Mapping[str, str]) -> list[Service]:
    argv = [sys.executable, "-c", "import sys; sys.exit('the dummy has a reason')"]
    return [Service("gateway", argv, env, ready=http_check(addresses.gateway_port, "/"))]


def tell(event: Event) -> None:
    print(json.dumps(dataclasses.asdict(event)), flush=True)


def main(state_dir: str, *flags: str) -> int:
    system = LocalSystem(Options(Path(state_dir)), compose=broken if "--fail" in flags else compose, tell=tell)
    try:
        system.run(on_ready=lambda addresses: print(json.dumps({"what": "up"}), flush=True))
    except AlreadyRunning as error:
        print(json.dumps({"what": "refused", "pid": error.pid}), flush=True)
        return 2
    except LocalError as error:
        print(json.dumps({"what": "failed", "text": str(error)}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
