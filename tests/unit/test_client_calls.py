"""The calls of the client against scripted answers: no network, and a clock that only pauses move."""

import json
from collections.abc import Generator
from typing import Any

import pytest

from tidemill.client.asking import Asker
from tidemill.client.jobs import Finished, JobCalls
from tidemill.client.values import OutputInfo, Snapshot
from tidemill.client.wire import Body, NoAnswer, Pause, Request, Response
from tidemill.errors import (
    Conflict,
    FunctionFailed,
    InvalidSpec,
    JobCancelled,
    NoCapacity,
    ServiceUnavailable,
    WaitTimeout,
)

JOB = {"id": "j1", "function": "echo", "state": "queued", "outputs": []}
CUT = NoAnswer("cut", sent=True)
REFUSED = NoAnswer("refused", sent=False)


class Played:
    """A call as it ran: what it asked, how long it paused, and what came of it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.requests: list[Request] = []
        self.pauses: list[float] = []
        self.calls = JobCalls(Asker(10.0, clock=lambda: self.now, jitter=lambda: 0.5))

    def play(self, call: Generator[Any, Any, Any], *answers: Any) -> Any:
        """Runs the call. A request that waits takes all its time when the answer is a job that is not over."""
        left = list(answers)
        step: Any = None
        failure: Exception | None = None
        try:
            while True:
                command = call.throw(failure) if failure else call.send(step)
                step, failure = None, None
                if isinstance(command, Pause):
                    self.pauses.append(command.seconds)
                    self.now += command.seconds
                    continue
                assert isinstance(command, Request)
                self.requests.append(command)
                answer = left.pop(0)
                if isinstance(answer, Exception):
                    failure = answer
                else:
                    step = answer
                    if command.wait_s and b'"queued"' in answer.content:
                        self.now += command.wait_s
        except StopIteration as stop:
            assert not left, f"not asked for: {left}"
            return stop.value


@pytest.fixture
def played() -> Played:
    return Played()


def said(value: Any, status: int = 200, **headers: str) -> Response:
    return Response(status, headers, json.dumps(value).encode())


def problem(status: int, code: str, detail: str = "no", hint: str | None = None, **headers: str) -> Response:
    return said({"code": code, "detail": detail, "hint": hint, "status": status}, status, **headers)


def ended(state: str = "succeeded", **more: Any) -> dict[str, Any]:
    return {**JOB, "state": state, **more}


def test_a_repeated_submit_keeps_its_idempotency_key(played: Played) -> None:
    job = played.play(played.calls.submit("echo", b"x"), CUT, REFUSED, problem(503, "x"), said(JOB, 202))
    keys = {request.headers["Idempotency-Key"] for request in played.requests}
    assert job.id == "j1"
    assert len(played.requests) == 4
    assert len(keys) == 1
    assert len(keys.pop()) == 32


def test_two_submits_without_a_key_have_two_keys(played: Played) -> None:
    for _ in range(2):
        played.play(played.calls.submit("echo", b"x"), said(JOB, 202))
    first, second = (request.headers["Idempotency-Key"] for request in played.requests)
    assert first != second


@pytest.mark.parametrize("first", [CUT, problem(502, "x"), None])
def test_no_answer_tells_whether_any_try_may_have_reached_the_service(played: Played, first: Any) -> None:
    refused = [NoAnswer("refused", sent=False) for _ in range(50)]
    with pytest.raises(NoAnswer) as caught:
        played.play(played.calls.submit("echo", b"x"), *filter(None, [first]), *refused)
    assert caught.value.sent is (first is not None)


def test_the_key_of_the_caller_is_sent(played: Played) -> None:
    played.play(played.calls.submit("echo", b"x", key="cat-1"), said(JOB, 202))
    assert played.requests[0].headers["Idempotency-Key"] == "cat-1"


@pytest.mark.parametrize("key", ["", "a\nb"])
def test_a_key_that_no_header_can_carry_is_refused_here(played: Played, key: str) -> None:
    with pytest.raises(InvalidSpec, match="idempotency key"):
        played.play(played.calls.submit("echo", b"x", key=key))


def test_retries_end_after_the_bound_with_the_last_failure(played: Played) -> None:
    with pytest.raises(NoAnswer, match="refused"):
        played.play(played.calls.submit("echo", b"x"), *[REFUSED] * 50)
    assert 8.0 <= played.now <= 10.0
    assert played.pauses[:3] == [0.1, 0.2, 0.4]


def test_retry_after_is_honoured(played: Played) -> None:
    busy = problem(503, "ledger_unavailable", **{"retry-after": "3"})
    played.play(played.calls.submit("echo", b"x"), busy, said(JOB, 202))
    assert played.pauses == [3.0]


def test_a_retry_after_beyond_the_bound_is_an_error_at_once(played: Played) -> None:
    with pytest.raises(ServiceUnavailable):
        played.play(played.calls.submit("echo", b"x"), problem(503, "x", **{"retry-after": "60"}))
    assert played.pauses == []


def test_a_retry_of_a_job_is_sent_again_under_the_same_key(played: Played) -> None:
    played.play(played.calls.retry("j1"), CUT, REFUSED, said(ended("queued", generation=2), 202))
    played.play(played.calls.retry("j1", "mine"), said(ended("queued", generation=3), 202))
    first, second, third, mine = [request.headers["Idempotency-Key"] for request in played.requests]
    assert first == second == third and mine == "mine"
    with pytest.raises(InvalidSpec):
        played.play(played.calls.retry("j1", ""))


def test_a_refusal_is_not_asked_again_and_keeps_its_hint_as_a_note(played: Played) -> None:
    with pytest.raises(Conflict) as caught:
        played.play(
            played.calls.submit("echo", b"x", key="k"), problem(409, "conflict", "other content", "Use another.")
        )
    assert caught.value.hint == "Use another."
    assert caught.value.__notes__ == ["Hint: Use another."]
    assert len(played.requests) == 1


def test_an_unknown_code_becomes_the_class_of_its_status_and_stays_readable(played: Played) -> None:
    with pytest.raises(InvalidSpec) as caught:
        played.play(played.calls.submit("echo", b"x"), problem(422, "too_blue"))
    assert caught.value.error_code == "too_blue"


def test_a_page_of_another_server_is_named_as_such(played: Played) -> None:
    with pytest.raises(ServiceUnavailable, match="<html>"):
        played.play(played.calls.look("j1", retry_s=0), Response(502, {}, b"<html>bad gateway"))
    with pytest.raises(ServiceUnavailable, match="not JSON"):
        played.play(played.calls.look("j1"), Response(200, {}, b"<html>"))


def test_a_redirect_is_followed_without_the_query(played: Played) -> None:
    moved = Response(307, {"location": "http://store/x?sig=1"})
    assert played.play(played.calls.fetch("j1", "a b"), moved, Response(200, {}, b"data")) == b"data"
    assert played.requests[0].query == {"name": "a b"}
    assert (played.requests[1].path, played.requests[1].query) == ("http://store/x?sig=1", {})


def test_redirects_in_a_circle_end(played: Played) -> None:
    moved = Response(307, {"location": "http://store/x"})
    with pytest.raises(Exception, match="HTTP 307"):
        played.play(played.calls.fetch("j1", "a"), *[moved] * 9)
    assert len(played.requests) == 4


def test_a_poll_asks_once(played: Played) -> None:
    with pytest.raises(WaitTimeout) as caught:
        played.play(played.calls.wait("j1", 0), said(JOB))
    assert isinstance(caught.value, TimeoutError)
    assert "client.job('j1')" in caught.value.hint
    assert played.requests[0].query == {}
    assert played.pauses == []


def test_a_wait_is_held_by_the_service_and_ends_in_time(played: Played) -> None:
    with pytest.raises(WaitTimeout):
        played.play(played.calls.wait("j1", 60), said(JOB), said(JOB), said(JOB))
    assert [request.query["wait"] for request in played.requests] == ["25.000", "25.000", "10.000"]
    assert all(request.method == "GET" for request in played.requests), "a time-out must not cancel"
    assert played.now == 60


def test_a_service_that_does_not_hold_is_polled_with_growing_pauses(played: Played) -> None:
    now = said({**JOB, "state": "running"})
    played.play(played.calls.wait("j1"), *[now] * 8, said(ended()))
    assert played.pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]


def test_a_wait_outlives_a_restart_of_the_service(played: Played) -> None:
    job = played.play(played.calls.wait("j1"), *[REFUSED] * 20, said(ended()))
    assert job.done
    assert played.now > 10, "longer than an ordinary call is retried"


def test_run_takes_one_request_when_the_result_comes_along(played: Played) -> None:
    answer = {"job": ended(outputs=[{"bucket": "b", "key": "k/result.json", "size": 4}]), "result": None}
    finished = played.play(played.calls.run("echo", b"x"), said({**answer, "result_inline": True}))
    assert finished.inline
    assert played.play(played.calls.results(finished)) == {"result.json": None}
    assert len(played.requests) == 1


def test_run_goes_on_waiting_when_the_first_answer_was_too_early(played: Played) -> None:
    early = said({"job": JOB, "result": None, "result_inline": False}, 202)
    finished = played.play(played.calls.run("echo", b"x"), early, said(ended()))
    assert finished.job.done
    assert [request.path.rsplit("/", 1)[-1] for request in played.requests] == ["run", "j1"]


def test_run_stops_waiting_in_time(played: Played) -> None:
    early = said({"job": JOB, "result": None, "result_inline": False}, 202)
    with pytest.raises(WaitTimeout):
        played.play(played.calls.run("echo", b"x", timeout=30), early, said(JOB))
    assert played.requests[0].query == {"timeout": "25.000"}
    assert played.requests[1].query == {"wait": "5.000"}


def test_run_submits_a_large_file_first(played: Played, tmp_path: Any) -> None:
    large = tmp_path / "large.bin"
    with large.open("wb") as file:
        file.truncate(9 * 2**20)
    played.play(played.calls.run("echo", large), said(JOB, 202), said(ended()))
    assert [request.path.rsplit("/", 1)[-1] for request in played.requests] == ["jobs", "j1"]


def test_an_object_is_named_in_json(played: Played) -> None:
    played.play(played.calls.submit("echo", {"bucket": "b", "key": "k"}, {"n": 1}), said(JOB, 202))
    assert played.requests[0].json == {"bucket": "b", "key": "k", "params": {"n": 1}}


def test_a_file_name_travels_whole_in_a_field_of_its_own(played: Played, tmp_path: Any) -> None:
    name = 'a"b\nc%22é👩‍💻.png'
    (tmp_path / name).write_bytes(b"x")
    played.play(played.calls.submit("echo", tmp_path / name), said(JOB, 202))
    parts = dict(played.requests[0].parts)
    assert parts["name"] == name
    assert isinstance(parts["file"], Body)
    assert parts["file"].content_type == "image/png"


@pytest.mark.parametrize("params", [["top_k", 3], {"k": float("nan")}, {"k": object()}])
def test_params_that_are_no_json_are_refused_with_a_hint(played: Played, params: Any) -> None:
    with pytest.raises(InvalidSpec, match="params") as caught:
        played.play(played.calls.submit("caption", b"x", params))
    assert caught.value.__notes__[0].startswith("Hint: Give ")


@pytest.mark.parametrize(
    ("state", "error", "expected"),
    [
        ("failed", {"code": "timeout", "message": "too long", "traceback": "Tb", "log_tail": "Lt"}, FunctionFailed),
        ("failed", {"code": "no_capacity", "message": "no GPU"}, NoCapacity),
        ("failed", None, FunctionFailed),
        ("cancelled", {"code": "superseded", "message": "changed"}, JobCancelled),
    ],
)
def test_a_job_that_did_not_succeed_raises_its_error(played: Played, state: str, error: Any, expected: type) -> None:
    job = Snapshot(ended(state, error=error))
    with pytest.raises(expected) as caught:
        played.play(played.calls.finish(job))
    assert caught.value.details["job_id"] == "j1"
    assert caught.value.__notes__
    assert "ID" not in caught.value.hint, "the hint names the job itself"
    if error:
        assert caught.value.error_code == error["code"]


def test_function_failed_shows_the_remote_traceback_and_the_end_of_the_log(played: Played) -> None:
    error = {"code": "function_failed", "message": "boom", "traceback": "Traceback: here", "log_tail": "last words"}
    with pytest.raises(FunctionFailed) as caught:
        played.play(played.calls.finish(Snapshot(ended("failed", error=error))))
    assert caught.value.traceback == "Traceback: here"
    assert "last words" in str(caught.value)


def test_results_are_decoded_only_where_they_are_json(played: Played) -> None:
    outputs = [
        {"bucket": "b", "key": "p/result.json", "size": 2, "name": "result.json"},
        {"bucket": "b", "key": "p/pic.png", "size": 9, "name": "pic.png", "content_type": "image/png"},
    ]
    finished = Finished(Snapshot(ended(outputs=outputs)))
    found = played.play(played.calls.results(finished), Response(200, {}, b"[1]"))
    assert found == {"result.json": [1], "pic.png": OutputInfo("pic.png", "b", "p/pic.png", 9, "image/png")}
    found = played.play(played.calls.results(finished), Response(200, {}, b"\xff not json"))
    assert isinstance(found["result.json"], OutputInfo)


def test_a_newer_service_may_say_more() -> None:
    job = Snapshot(
        {
            **ended(),
            "mood": "good",
            "cost": {"usd": 0.5, "gpu_seconds": 2, "co2_g": 1},
            "progress": {"done": 1, "eta": 3},
            "placement": {"pool": "p", "reason": "near", "candidates": [{"pool": "p", "usd": 1.0, "luck": 7}]},
        }
    )
    assert job.cost.usd == 0.5
    assert job.progress is not None
    assert job.progress.total is None
    assert job.placement is not None
    assert job.placement.candidates[0].usd == 1.0
