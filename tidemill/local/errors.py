"""What can go wrong with the system on one machine.

TidemillError
└── LocalError
    ├── AlreadyRunning     another `tidemill up` holds the state folder
    ├── NotRunning         no `tidemill up` holds it
    ├── StartFailed        a server or service did not become ready
    └── ServerMissing      the wheel that brings a server is not installed
"""

from tidemill.errors import TidemillError


class LocalError(TidemillError):
    code = "local_system"
    default_hint = "Look into the folder `logs` of the state folder."


class AlreadyRunning(LocalError):
    """`pid` is the process that holds the state folder, 0 when it is just starting."""

    code = "already_running"
    status = 409
    default_hint = "Stop it with `tidemill down`, or give this one a folder of its own with --state-dir."

    def __init__(self, message: str, *, pid: int) -> None:
        super().__init__(message)
        self.pid = pid


class NotRunning(LocalError):
    code = "not_running"
    status = 503
    default_hint = "Start it with `tidemill up -d`, or name its state folder with --state-dir."


class StartFailed(LocalError):
    """`name` is the service, `log_tail` the end of what it printed."""

    code = "start_failed"
    status = 503

    def __init__(self, name: str, reason: str, log_tail: str = "", *, hint: str | None = None) -> None:
        super().__init__(f"{name} did not start: {reason}", hint=hint)
        self.name = name
        self.log_tail = log_tail

    def __str__(self) -> str:
        tail = self.log_tail.strip()
        return f"{self.message}\n\nEnd of its log:\n{tail}" if tail else self.message


class ServerMissing(LocalError):
    code = "server_missing"
    status = 503
    default_hint = "Install the servers with: pip install 'tidemill[local]'. Or use your own: --redis URL, --store URL."
