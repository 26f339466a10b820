"""Each public call with its types: checked by mypy, never run."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, assert_type

from tidemill import (
    AsyncClient,
    AsyncJob,
    Client,
    Context,
    File,
    FunctionFailed,
    Job,
    Output,
    PermanentError,
    TemporaryError,
    TidemillError,
    WaitTimeout,
)
from tidemill.client import AsyncOutput, Cost, LogLine, Placement, Progress


def use_client(paths: list[Path]) -> None:
    with Client("http://127.0.0.1:8080", "token", retry_s=1.0) as client:
        job = client.submit("caption", "cat.jpg", params={"top_k": 3}, key="cat-1")
        assert_type(job, Job)
        assert_type(job.result(timeout=60), Any)
        assert_type(job.wait(timeout=0.5), Job)
        assert_type(job.done(), bool)
        assert_type(job.progress, Progress | None)
        assert_type(job.cost, Cost)
        assert_type(job.placement, Placement | None)
        assert_type(job.outputs, list[Output])
        assert_type(job.outputs[0].read(), bytes)
        assert_type(job.outputs[0].save("folder"), Path)
        assert_type(job.logs(), str)
        assert_type(job.follow(), Iterator[LogLine])
        assert_type(job.url, str)
        assert_type(job.error, TidemillError | None)
        assert_type(client.job(job.id).cancel(), Job)
        assert_type(client.run("caption", b"bytes", timeout=1), Any)
        assert_type(client.run("caption", {"bucket": "inbox", "key": "cat.jpg"}), Any)
        assert_type(client.map("caption", paths, order_outputs=False, return_exceptions=True), Iterator[Any])
        assert_type(client.jobs(state="failed"), Iterator[Job])
        assert_type(client.functions(), list[dict[str, Any]])
        assert_type(client.deploy(Path("functions/ocr")), dict[str, Any])
        assert_type(client.replay("ocr", prefix="2025/", failed_only=True, dry_run=True), dict[str, Any])
        client.upload("cat.jpg", "inbox", "caption/cat.jpg")
        assert_type(client.ignored(limit=5), list[dict[str, Any]])
    with open("cat.jpg", "rb") as file:
        client.submit("caption", file)
    client.submit("caption", File(Path("cat.jpg")))
    client.submit("caption", 7)  # type: ignore[arg-type]


async def use_async_client(paths: list[str]) -> None:
    async with AsyncClient() as client:
        job = await client.submit("caption", "cat.jpg")
        assert_type(job, AsyncJob)
        assert_type(await job.result(timeout=60), Any)
        assert_type(job.outputs, list[AsyncOutput])
        assert_type(await job.outputs[0].read(), bytes)
        assert_type(client.map("caption", paths), AsyncIterator[Any])
        assert_type(client.jobs(), AsyncIterator[AsyncJob])


def handle_errors(job: Job) -> str:
    try:
        job.result(timeout=1)
    except WaitTimeout as error:
        assert_type(error.hint, str)
    except FunctionFailed as error:
        return error.traceback + error.log_tail
    return ""


def caption(file: File, ctx: Context) -> dict[str, Any]:
    ctx.progress(1, 2, "pages")
    if ctx.cancelled:
        raise TemporaryError("later", delay=1.5)
    if not file.read():
        raise PermanentError("empty")
    return {"name": file.name, "top_k": ctx.params["top_k"]}
