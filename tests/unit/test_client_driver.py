"""Both clients over real HTTP, against a small gateway in a thread."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import wait_until
from tests.support.fake_gateway import TOKEN, FakeGateway, Handler, run_fake_gateway
from tidemill import AsyncClient, Client, FunctionFailed, NotAllowed, NotFound, Output, ServiceUnavailable, WaitTimeout
from tidemill.client.wire import NoAnswer


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with run_fake_gateway() as running:
        yield running


@pytest.fixture
def client(gateway: FakeGateway) -> Iterator[Client]:
    with Client(gateway.url, TOKEN) as client:
        yield client


class Once:
    """A fault of the first request whose path ends so."""

    def __init__(self, ending: str, act: Any) -> None:
        self.ending, self.act, self.done = ending, act, False

    def __call__(self, handler: Handler) -> bool:
        if self.done or not handler.request_seen.path.endswith(self.ending):
            return False
        self.done = True
        self.act(handler)
        return True


def test_run_gives_the_value_in_one_request(gateway: FakeGateway, client: Client) -> None:
    gateway.auto = lambda content: {"bytes": len(content)}
    assert client.run("echo", b"four", params={"n": 1}) == {"bytes": 4}
    assert [(seen.method, seen.path) for seen in gateway.seen] == [("POST", "/api/v1/functions/echo/run")]
    assert next(iter(gateway.jobs.values()))["params"] == {"n": 1}


def test_a_file_and_its_odd_name_arrive_unchanged(gateway: FakeGateway, client: Client, tmp_path: Path) -> None:
    path = tmp_path / 'a"b\n%2F\\é👩‍💻'
    path.write_bytes(bytes(range(256)))
    client.submit("echo", path)
    assert gateway.seen[0].form["file"] == bytes(range(256))
    assert gateway.seen[0].form["name"].decode() == path.name


def test_a_time_out_never_cancels(gateway: FakeGateway, client: Client) -> None:
    job = client.submit("echo", b"x")
    for timeout in (0, 0.05):
        with pytest.raises(WaitTimeout):
            job.result(timeout=timeout)
    assert not any("cancel" in seen.path for seen in gateway.seen)
    gateway.end(job.id, "succeeded", {"result.json": b"42"})
    assert job.result(timeout=5) == 42


def test_a_wait_ends_when_the_job_does(gateway: FakeGateway, client: Client) -> None:
    job = client.submit("echo", b"x")
    timer = threading.Timer(0.1, gateway.end, (job.id, "succeeded", {"result.json": b'"now"'}))
    timer.start()
    assert job.result() == "now"
    timer.join()


def test_a_submit_whose_answer_is_lost_is_repeated_as_the_same_job(gateway: FakeGateway, client: Client) -> None:
    def accept_and_drop(handler: Handler) -> None:
        form, key = handler.request_seen.form, handler.request_seen.headers["idempotency-key"]
        gateway.submit("echo", form["file"], key, "x", {})
        handler.drop()

    gateway.faults.append(Once("/jobs", accept_and_drop))
    job = client.submit("echo", b"x")
    assert list(gateway.jobs) == [job.id]
    assert len(gateway.seen) == 2


def test_a_busy_service_is_asked_again(gateway: FakeGateway, client: Client) -> None:
    gateway.faults.append(Once("/jobs", lambda h: h.problem(503, "ledger_full", "full", "Wait.")))
    assert client.submit("echo", b"x").state == "queued"


def test_nobody_there_is_said_so_and_bounded() -> None:
    with pytest.raises(NoAnswer, match=r"http://127\.0\.0\.1:9 does not answer") as caught:
        Client("http://127.0.0.1:9", retry_s=0.0).functions()
    assert isinstance(caught.value, ServiceUnavailable)
    assert not caught.value.sent
    assert "tidemill up" in caught.value.hint


def test_a_wrong_token_is_not_allowed_with_the_hint_as_a_note(gateway: FakeGateway) -> None:
    with Client(gateway.url, "wrong") as client, pytest.raises(NotAllowed) as caught:
        client.functions()
    assert caught.value.__notes__ == ["Hint: Set TIDEMILL_TOKEN."]
    assert caught.value.details["request_id"] == "r1"


def test_unknown_functions_and_jobs_are_not_found(client: Client) -> None:
    with pytest.raises(NotFound, match="no function nope"):
        client.run("nope", b"x")
    with pytest.raises(NotFound, match="no job abc"):
        client.job("abc")


def test_a_failing_function_raises_with_the_remote_traceback(gateway: FakeGateway, client: Client) -> None:
    gateway.auto = lambda content: ValueError("bad picture")
    with pytest.raises(FunctionFailed, match="bad picture") as caught:
        client.run("echo", b"x")
    assert (caught.value.traceback, caught.value.log_tail) == ("T", "L")


def test_files_are_outputs_that_can_be_read_and_saved(gateway: FakeGateway, client: Client, tmp_path: Path) -> None:
    job = client.submit("echo", b"x")
    gateway.end(job.id, "succeeded", {"../pic.png": b"\x89PNG"})
    result = job.result()
    assert isinstance(result, Output)
    assert (result.name, result.size, result.read()) == ("../pic.png", 4, b"\x89PNG")
    assert result.save(tmp_path) == tmp_path / "_pic.png"
    assert result.save(tmp_path / "mine").read_bytes() == b"\x89PNG"
    assert result.url == f"{gateway.url}/link/../pic.png"


def test_several_results_come_by_name_and_none_is_none(gateway: FakeGateway, client: Client) -> None:
    several, nothing = client.submit("echo", b"x"), client.submit("echo", b"y")
    gateway.end(several.id, "succeeded", {"result.json": b"[1]", "a.txt": b"A"})
    gateway.end(nothing.id, "succeeded")
    result = several.result()
    assert result["result.json"] == [1]
    assert result["a.txt"].read() == b"A"
    assert nothing.result() is None


def test_large_results_come_from_the_store_without_our_token(gateway: FakeGateway, client: Client) -> None:
    job = client.submit("echo", b"x")
    gateway.end(job.id, "succeeded", {"big.bin": b"0" * 9})
    with run_fake_gateway() as store:
        store.faults.append(Once("/big", lambda h: h.reply(b"123456789")))
        gateway.faults.append(Once("/outputs", lambda h: h.reply(b"", 307, Location=f"{store.url}/big?sig=a%2Fb")))
        assert job.result().read() == b"123456789"
    assert "authorization" not in store.seen[0].headers
    assert store.seen[0].query == {"sig": "a/b"}


def test_cancel_and_retry(gateway: FakeGateway, client: Client) -> None:
    job = client.submit("echo", b"x")
    assert job.cancel().state == "cancelled"
    assert job.error is not None
    assert job.retry(key="once").data["generation"] == 2
    assert job.retry(key="once").data["generation"] == 2
    assert not job.done()
    assert job.retry().data["generation"] == 3


def test_live_facts_are_asked_for_until_the_end(gateway: FakeGateway, client: Client) -> None:
    job = client.submit("echo", b"x")
    gateway.jobs[job.id]["progress"] = {"done": 3, "total": 4, "unit": "pages"}
    gateway.jobs[job.id]["placement"] = {"pool": "cpu", "reason": "cheapest", "candidates": []}
    assert job.progress is not None
    assert job.progress.done == 3
    assert job.placement is not None
    assert job.placement.reason == "cheapest"
    gateway.end(job.id, "succeeded", {"result.json": b"1"})
    assert [output.name for output in job.outputs] == ["result.json"]
    asked = len(gateway.seen)
    assert job.cost.usd == 0.0
    assert job.done()
    assert len(gateway.seen) == asked, "a job that is over changes no more"


def test_logs_as_text_and_line_by_line(gateway: FakeGateway, client: Client) -> None:
    job = client.submit("echo", b"x")
    gateway.logs[job.id] = ["one", "two"]
    assert job.logs() == "one\ntwo\n"
    assert [line.text for line in job.follow()] == ["one", "two"]


def test_jobs_pages_through_everything(gateway: FakeGateway, client: Client) -> None:
    for number in range(1203):
        gateway.submit("echo", b"", f"k{number}", "x", {})
    assert len({job.id for job in client.jobs()}) == 1203
    assert len(list(client.jobs(limit=7))) == 7
    assert list(client.jobs(state="failed")) == []


def test_map_keeps_the_order(gateway: FakeGateway, client: Client) -> None:
    gateway.auto = lambda content: int(content)
    assert list(client.map("echo", (str(n).encode() for n in range(50)), concurrency=10)) == list(range(50))


def test_map_gives_results_as_they_come(gateway: FakeGateway, client: Client) -> None:
    results = client.map("echo", [b"slow", b"fast"], order_outputs=False)
    waiting = threading.Thread(target=_end_in_turn, args=(gateway,))
    waiting.start()
    assert list(results) == ["fast", "slow"]
    waiting.join()


def _end_in_turn(gateway: FakeGateway) -> None:
    wait_until(lambda: len(gateway.jobs) == 2)
    keys = {seen.form["file"]: seen.headers["idempotency-key"] for seen in gateway.seen if seen.method == "POST"}
    slow, fast = (gateway.submit("echo", b"", keys[name], "", {})["id"] for name in (b"slow", b"fast"))
    gateway.end(fast, "succeeded", {"result.json": b'"fast"'})
    wait_until(lambda: any(seen.path.endswith(f"{fast}/outputs") for seen in list(gateway.seen)))
    gateway.end(slow, "succeeded", {"result.json": b'"slow"'})


def test_map_gives_errors_in_place_or_raises_them(gateway: FakeGateway, client: Client) -> None:
    gateway.auto = lambda content: ValueError("odd") if content == b"1" else content.decode()
    mixed = list(client.map("echo", [b"0", b"1", "/no/such", b"2"], return_exceptions=True))
    assert [mixed[0], mixed[3]] == ["0", "2"]
    assert isinstance(mixed[1], FunctionFailed)
    assert "does not exist" in str(mixed[2])
    with pytest.raises(FunctionFailed, match="odd"):
        list(client.map("echo", [b"0", b"1"]))


def test_map_takes_no_more_than_its_window(gateway: FakeGateway, client: Client) -> None:
    gateway.auto = lambda content: 1
    taken = []

    def endless() -> Iterator[bytes]:
        while True:
            taken.append(1)
            yield b"x"

    results = client.map("echo", endless(), concurrency=4)
    assert [next(results) for _ in range(10)] == [1] * 10
    assert len(taken) <= 16


@pytest.mark.parametrize("in_order", [True, False])
def test_map_stops_waiting_in_time_and_cancels_nothing(gateway: FakeGateway, client: Client, in_order: bool) -> None:
    with pytest.raises(WaitTimeout, match="2 jobs"):
        list(client.map("echo", [b"a", b"b"], order_outputs=in_order, timeout=0.1))
    assert [job["state"] for job in gateway.jobs.values()] == ["queued", "queued"]


def test_upload_goes_to_the_presigned_address_without_our_token(
    gateway: FakeGateway, client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(b"x" * 700_000)
    client.upload(path, "inbox", "a b/../é.png")
    assert gateway.objects["inbox/a b/../é.png"] == b"x" * 700_000
    put = gateway.seen[-1]
    assert "authorization" not in put.headers
    assert put.headers["content-length"] == "700000"


def test_deploy_sends_the_checked_spec_and_the_code(gateway: FakeGateway, client: Client, tmp_path: Path) -> None:
    (tmp_path / "function.yaml").write_text("name: hello\nhandler: hello:hello\n")
    (tmp_path / "hello.py").write_text("def hello(file, ctx): ...\n")
    assert client.deploy(tmp_path)["name"] == "hello"
    assert gateway.seen[0].form["code"][:2] == b"\x1f\x8b"
    assert {entry["name"] for entry in client.functions()} == {"echo", "hello"}
    client.delete_function("hello")
    assert [entry["name"] for entry in client.functions()] == ["echo"]


def test_a_client_may_be_used_after_it_was_closed(gateway: FakeGateway, client: Client) -> None:
    gateway.auto = lambda content: 1
    client.run("echo", b"x")
    client.close()
    assert client.run("echo", b"x") == 1


def test_the_async_client_does_the_same(gateway: FakeGateway, tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncClient(gateway.url, TOKEN) as client:
            gateway.auto = lambda content: content.decode()
            assert await client.run("echo", b"one") == "one"
            assert sorted([r async for r in client.map("echo", [b"a", b"b"], order_outputs=False)]) == ["a", "b"]
            assert [r async for r in client.map("echo", [b"a", b"b"])] == ["a", "b"]
            gateway.auto = None
            job = await client.submit("echo", b"x")
            with pytest.raises(WaitTimeout):
                await job.result(timeout=0)
            gateway.end(job.id, "succeeded", {"a.txt": b"A"})
            output = await job.result()
            assert await output.read() == b"A"
            assert (await output.save(tmp_path)).read_bytes() == b"A"
            (tmp_path / "up").write_bytes(b"data")
            await client.upload(tmp_path / "up", "inbox", "k")
            assert gateway.objects["inbox/k"] == b"data"
            assert len([job async for job in client.jobs()]) == 6
            with pytest.raises(NotFound):
                await client.job("nope")

    asyncio.run(work())
