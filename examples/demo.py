"""The demo: start the whole system on this machine, drop files into a bucket, watch them become results.

    make demo               stay up afterwards, until Ctrl-C
    make demo ARGS=--once   end after the results; the last line is a JSON summary

Everything lives in a folder of its own, which is removed at the end, so that any number of demos run side by side. What
a killed one left is removed by the next.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tidemill import Client
from tidemill.local.spawn import spawn
from tidemill_workers.environments import EnvironmentBuilder, EnvironmentFailed

HERE = Path(__file__).parent
FUNCTIONS = ("ocr", "filetype")
READY_S = 120.0
DONE_S = 900.0
IDLE_S = 60.0
_PREFIX, _ALIVE = "tidemill-demo-", "alive"
_SETTLED_S = 60.0  # between making a folder and locking it
FINAL = ("succeeded", "failed", "cancelled")
STYLE = {"queued": "dim", "released": "cyan", "running": "yellow", "committed": "yellow", "succeeded": "green"}


@dataclass
class Sample:
    """A file to drop, and words that its result must contain."""

    path: Path
    key: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--once", action="store_true", help="end after the results, with a JSON summary as last line")
    parser.add_argument("--count", type=int, default=44, metavar="N", help="pictures to drop (default 44)")
    parser.add_argument("--with-parent", action="store_true", help="end when the process that started this one ends")
    options = parser.parse_args()
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 120  # a log file has room for whole names
    signal.signal(signal.SIGTERM, _interrupted)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not under nohup
        signal.signal(signal.SIGHUP, _interrupted)
    if options.with_parent:
        threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    _remove_leftovers()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        alive = (Path(folder) / _ALIVE).open("w")
        fcntl.flock(alive, fcntl.LOCK_EX)
        try:
            return Demo(console, Path(folder), options.count).run(once=options.once)
        except KeyboardInterrupt:
            console.print("\nStopped. Nothing is left running.")
            return 130
        except DemoFailed as error:
            console.print(f"[bold red]The demo did not work:[/] {error}", highlight=False)
            return 1


class DemoFailed(Exception):
    """Says what did not work, and what to do."""


class Demo:
    """One run of the demo, in `folder`."""

    def __init__(self, console: Console, folder: Path, count: int) -> None:
        self._console = console
        self._folder = folder
        self._count = count
        self._began = time.monotonic()

    def run(self, *, once: bool) -> int:
        pythons = self._environments()
        samples = self._samples(pythons["ocr"])
        with self._system() as status:
            with Client(status["url"], status["token"]) as client:
                self._deploy(client)
                jobs = self._drop_and_watch(client, samples)
                self._show(client, jobs)
                left = self._until_idle(client)
            failed = [job for job in jobs if job["state"] != "succeeded"]
            summary = {
                "jobs": len(jobs),
                "succeeded": len(jobs) - len(failed),
                "failed": len(failed),
                "seconds": round(time.monotonic() - self._began, 1),
                "workers_after_idle": left,
            }
            if not once:
                self._addresses(status)
                _wait_for_interrupt()
        if once:
            print(json.dumps(summary), flush=True)
        return 1 if failed or left else 0

    # -- before ----------------------------------------------------------------------------------------------------
    def _environments(self) -> dict[str, Path]:
        """Build what the functions need now, where it can be watched; agents would do it at the first job."""
        from tidemill_workers.agent.service import default_environments

        builder = EnvironmentBuilder(default_environments())
        pythons: dict[str, Path] = {}
        with self._spinner() as progress:
            for name in FUNCTIONS:
                task = progress.add_task(f"environment of {name}", total=None)

                def say(line: str, task: Any = task, name: str = name) -> None:
                    progress.update(task, description=f"environment of {name}: {line.strip()[:80]}")

                try:
                    built = builder.ensure(name, HERE / name / "requirements.txt", True, on_line=say)
                except EnvironmentFailed as error:
                    raise DemoFailed(f"the environment of {name} cannot be built: {error}\n{error.log_tail}") from error
                progress.update(task, description=f"environment of {name} is ready", total=1, completed=1)
                pythons[name] = built.python
        return pythons

    def _samples(self, python: Path) -> list[Sample]:
        folder = self._folder / "samples"
        command = [str(python), "-P", str(HERE / "samples" / "make.py"), str(folder), "--count", str(self._count)]
        with self._spinner() as progress:
            task = progress.add_task(f"drawing {self._count} invoices, receipts and photographs", total=None)
            environment = {**os.environ, "PYTHONPATH": str(HERE / "samples")}
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            progress.update(task, total=1, completed=1)
        if done.returncode:
            raise DemoFailed(f"the sample files cannot be made:\n{done.stderr[-2000:]}")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return [Sample(folder / row["path"], row["path"]) for row in rows]

    @contextlib.contextmanager
    def _system(self) -> Iterator[dict[str, Any]]:
        """`tidemill up` in the demo's folder, ended with the demo whatever happens."""
        state = self._folder / "state"
        command = [sys.executable, "-P", "-m", "tidemill", "up", "--state-dir", str(state)]
        command += ["--pools", str(HERE / "pools.yaml")]
        environment = {**os.environ, "XDG_CONFIG_HOME": str(self._folder / "config")}
        with (self._folder / "up.log").open("wb") as output:
            # In a session of its own: Ctrl-C is the demo's, which stops the system in its own order.
            up = spawn(command, env=environment, cwd=self._folder, output=output)
        try:
            yield self._ready(up, state)
        finally:
            up.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                up.wait(30)
            if up.poll() is None:
                up.kill()
                up.wait()

    def _ready(self, up: subprocess.Popen[bytes], state: Path) -> dict[str, Any]:
        from tidemill.local.commands import status
        from tidemill.local.errors import LocalError

        began = time.monotonic()
        with self._spinner() as progress:
            task = progress.add_task("starting Valkey, SeaweedFS, gateway, placement and Flower", total=None)
            while time.monotonic() - began < READY_S:
                if up.poll() is not None:
                    raise DemoFailed(f"`tidemill up` ended:\n{self._up_log()}")
                with contextlib.suppress(LocalError):
                    found = status(state)
                    if all(process["state"] == "running" for process in found["processes"]) and _answers(found):
                        up_s = f"{time.monotonic() - began:.1f} s"
                        progress.update(task, description=f"the system is up after {up_s}", total=1, completed=1)
                        return found
                time.sleep(0.1)
        raise DemoFailed(f"the system is not ready after {READY_S:.0f} s:\n{self._up_log()}")

    def _up_log(self) -> str:
        return (self._folder / "up.log").read_text(errors="replace")[-3000:]

    def _deploy(self, client: Client) -> None:
        for name in FUNCTIONS:
            record = client.deploy(HERE / name)
            rules = ", ".join(f"{t['bucket']}/{t['prefix']}" for t in record["spec"]["trigger"])
            self._console.print(f"Deployed [bold]{name}[/]: files that appear in {rules} start it.")

    # -- the work --------------------------------------------------------------------------------------------------
    def _drop_and_watch(self, client: Client, samples: list[Sample]) -> list[dict[str, Any]]:
        self._console.print(f"Dropping {len(samples)} files into the bucket [bold]inbox[/] ...\n")
        dropper = threading.Thread(target=_drop, args=(client, samples), daemon=True)
        dropper.start()
        deadline = time.monotonic() + DONE_S
        with Live(console=self._console, refresh_per_second=4, transient=not self._console.is_terminal) as live:
            while True:
                jobs = [dict(job.data) for job in client.jobs()]
                live.update(_board(jobs, len(samples), client.agents()))
                if len(jobs) >= len(samples) and all(job["state"] in FINAL for job in jobs):
                    break
                if time.monotonic() > deadline:
                    raise DemoFailed(f"after {DONE_S:.0f} s only {len(jobs)} of {len(samples)} jobs are done")
                time.sleep(0.25)
        dropper.join()
        return sorted(jobs, key=lambda job: (job["function"], job["input"]["key"]))

    def _show(self, client: Client, jobs: list[dict[str, Any]]) -> None:
        table = Table(title="Results", show_lines=False, expand=True)
        table.add_column("file", ratio=3, no_wrap=True, overflow="ellipsis")
        table.add_column("what was read", ratio=6, no_wrap=True, overflow="ellipsis")
        table.add_column("seconds", justify="right", no_wrap=True, min_width=7)
        table.add_column("US dollars", justify="right", no_wrap=True, min_width=10)
        table.add_column("pool", no_wrap=True, min_width=6)
        for job in jobs:
            seconds = (job["finished_at"] or 0) - (job["started_at"] or job["created_at"])
            name = job["input"]["key"].partition("/")[2]
            usd = f"{job['cost']['usd']:.7f}"
            table.add_row(Text(name), Text(_said(client, job)), f"{seconds:.2f}", usd, job["pool"] or "-")
        self._console.print(table)
        self._reasons(jobs)
        total = sum(job["cost"]["usd"] for job in jobs)
        self._console.print(f"All {len(jobs)} jobs together cost [bold]${total:.6f}[/].\n")

    def _reasons(self, jobs: list[dict[str, Any]]) -> None:
        """Why placement chose as it did: one sentence for each pool and function, as stored with the jobs."""
        shown = set()
        for job in jobs:
            placement = job["placement"] or {}
            if placement.get("reason") and (job["function"], job["pool"]) not in shown:
                shown.add((job["function"], job["pool"]))
                self._console.print(f"Why [bold]{job['function']}[/] ran on {placement['reason']}", highlight=False)

    def _until_idle(self, client: Client) -> int:
        """Watch runners and agents go. Gives how many are left when the time is over: none, if all is well."""
        deadline = time.monotonic() + IDLE_S
        with self._spinner() as progress:
            task = progress.add_task("", total=None)
            while True:
                agents = client.agents()
                runners: int = sum(runner["slots"] for agent in agents for runner in agent["runners"])
                said = f"idle: {runners} runners on {len(agents)} agents are left"
                progress.update(task, description=said)
                if not agents:
                    said = "idle: no runner and no agent is left; nothing costs anything"
                    progress.update(task, description=said, total=1, completed=1)
                    return 0
                if time.monotonic() > deadline:
                    return runners + len(agents)
                time.sleep(0.2)

    def _addresses(self, status: dict[str, Any]) -> None:
        store = status["store"]
        self._console.print(
            "\nThe system stays up until Ctrl-C. Drop a file of yours into inbox/ocr/ and look again.\n"
            f"  API            {status['url']}   (token {status['token']}; described in /openapi.json)\n"
            f"  Flower         {status['flower']}\n"
            f"  Store (S3)     {store['endpoint']}   (key {store['access_key']}, secret {store['secret_key']})\n"
            "  Shell          "
            f"eval \"$({sys.executable} -m tidemill env --state-dir '{self._folder / 'state'}')\"\n",
            highlight=False,
            soft_wrap=True,
        )

    def _spinner(self) -> Progress:
        columns = (SpinnerColumn(finished_text="[green]+[/]"), TextColumn("{task.description}"), TimeElapsedColumn())
        return Progress(*columns, console=self._console)


def _drop(client: Client, samples: list[Sample]) -> None:
    for sample in samples:
        client.upload(sample.path, "inbox", sample.key)


def _board(jobs: list[dict[str, Any]], total: int, agents: list[dict[str, Any]]) -> Table:
    """The live table: what is under way on top, then what ended last."""
    ended = sum(job["state"] in FINAL for job in jobs)
    table = Table(title=f"{ended} of {total} done", expand=True)
    for name, ratio in (("job", 2), ("function", 1), ("file", 4), ("state", 1), ("pool", 1), ("seconds", 1)):
        table.add_column(name, ratio=ratio, no_wrap=True, overflow="ellipsis")
    order = sorted(jobs, key=lambda job: (job["state"] in FINAL, job["state"] == "queued", -(job["finished_at"] or 0)))
    for job in order[:14]:
        state = job["state"]
        began = job["started_at"] or job["created_at"]
        seconds = (job["finished_at"] or time.time()) - began
        table.add_row(
            job["id"][:10],
            job["function"],
            Text(job["input"]["key"].partition("/")[2]),
            Text(state, style=STYLE.get(state, "red")),
            job["pool"] or "-",
            f"{seconds:.1f}",
        )
    pools = ", ".join(f"{agent['pool']} ({agent['state']})" for agent in agents) or "none: all pools are at zero"
    table.caption = f"agents: {pools}"
    return table


def _said(client: Client, job: dict[str, Any]) -> str:
    """One line of what a job gave."""
    if job["state"] != "succeeded":
        error = job["error"] or {}
        return f"{job['state']}: {error.get('message', '')}"
    value = client.job(job["id"]).result(timeout=30)
    if "text" in value:
        return " / ".join(value["text"].splitlines()[:6])
    return f"{value['label']}: {value['description']}"


def _answers(status: dict[str, Any]) -> bool:
    """Whether the gateway takes calls: `up` writes its addresses before all services are ready."""
    import httpx

    try:
        answer = httpx.get(f"{status['url']}/readyz", headers={"Authorization": f"Bearer {status['token']}"}, timeout=2)
    except httpx.HTTPError:
        return False
    return answer.status_code == 200


def _wait_for_interrupt() -> None:
    while True:
        time.sleep(3600)


def _follow(parent: int) -> None:
    """When `make` is killed, nobody would tell us."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)


def _remove_leftovers() -> None:
    """Folders of demos that were killed; who lives holds a lock in its own."""
    for alive in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_ALIVE}"):
        with contextlib.suppress(OSError), alive.open("r+") as file:  # somebody else's, alive, or just removed
            if time.time() - alive.stat().st_mtime > _SETTLED_S:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(alive.parent, ignore_errors=True)


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
