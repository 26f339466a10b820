"""The loops that run calls over httpx, one for threads and one for asyncio.

httpx is imported at the first request. The client for the service and the one for other addresses (presigned links) are
made when they are needed: a TLS context costs more than everything else here, and loopback needs none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from tidemill.client.profile import Profile
from tidemill.client.wire import Body, Call, Command, Emit, NoAnswer, Pause, Request, Response, Together
from tidemill.errors import InvalidSpec, TidemillError

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    import httpx

T = TypeVar("T")

_CHUNK = 256 * 1024
_CONNECT_S = 5.0
_ANSWER_S = 30.0
# Below the 5 s after which common servers close an idle connection, so that ours is seldom closed under a request.
_KEEP_ALIVE_S = 3.0
_AT_ONCE = 8
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class Driver:
    """Runs calls; any thread may use it."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._lock = threading.Lock()
        self._clients: dict[bool, httpx.Client] = {}
        self._threads: ThreadPoolExecutor | None = None

    def run(self, call: Call[T]) -> T:
        """Give the value of the call."""
        steps = self.iterate(call)
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                value: T = stop.value
                return value

    def iterate(self, call: Call[T]) -> Generator[Any, None, T]:
        """Give what the call emits."""
        turn = _Turn()
        while (command := turn.next(call)) is not None:
            if isinstance(command, Emit):
                yield command.value
                continue
            try:
                turn.answer = self._do(command)
            except NoAnswer as error:
                turn.error = error
        return turn.value  # type: ignore[no-any-return]

    def close(self) -> None:
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()
            if self._threads is not None:
                self._threads.shutdown(wait=False)
                self._threads = None

    def _do(self, command: Command) -> Any:
        if isinstance(command, Request):
            return self._send(command)
        if isinstance(command, Pause):
            return time.sleep(command.seconds)
        if isinstance(command, Together):
            return list(self._pool().map(self._outcome, command.calls))
        raise TypeError(f"{type(command).__name__} is no command of a call")

    def _outcome(self, call: Call[Any]) -> Any:
        try:
            return self.run(call)
        except (TidemillError, OSError) as error:
            return error

    def _send(self, request: Request) -> Response:
        import httpx

        client = self._client(request)
        try:
            with ExitStack() as files:
                built = _build(client, self._profile, request, files, _chunks)
                answer = client.send(built, stream=True)
                files.callback(answer.close)
                if request.sink is None or not answer.is_success:
                    return _response(answer, answer.read())
                with request.sink() as sink:
                    for chunk in answer.iter_bytes(_CHUNK):
                        sink.write(chunk)
                return _response(answer, b"")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _no_answer(request, self._profile, error) from error

    def _client(self, request: Request) -> httpx.Client:
        import httpx

        own = _is_own(request)
        with self._lock:
            if own not in self._clients:
                self._clients[own] = httpx.Client(**_options(self._profile, own))
            return self._clients[own]

    def _pool(self) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor

        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="tidemill-client")
            return self._threads


class AsyncDriver:
    """Runs calls in an event loop."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._clients: dict[bool, httpx.AsyncClient] = {}

    async def run(self, call: Call[T]) -> T:
        """Give the value of the call."""
        turn = _Turn()
        async for _ in self._steps(call, turn):
            raise TypeError("this call emits values: iterate over it")
        return turn.value  # type: ignore[no-any-return]

    def iterate(self, call: Call[Any]) -> AsyncIterator[Any]:
        """Give what the call emits."""
        return self._steps(call, _Turn())

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()

    async def _steps(self, call: Call[Any], turn: _Turn) -> AsyncIterator[Any]:
        while (command := turn.next(call)) is not None:
            if isinstance(command, Emit):
                yield command.value
                continue
            try:
                turn.answer = await self._do(command)
            except NoAnswer as error:
                turn.error = error

    async def _do(self, command: Command) -> Any:
        import asyncio

        if isinstance(command, Request):
            return await self._send(command)
        if isinstance(command, Pause):
            return await asyncio.sleep(command.seconds)
        if isinstance(command, Together):
            gate = asyncio.Semaphore(_AT_ONCE)
            return await asyncio.gather(*(self._outcome(call, gate) for call in command.calls))
        raise TypeError(f"{type(command).__name__} is no command of a call")

    async def _outcome(self, call: Call[Any], gate: asyncio.Semaphore) -> Any:
        async with gate:
            try:
                return await self.run(call)
            except (TidemillError, OSError) as error:
                return error

    async def _send(self, request: Request) -> Response:
        import asyncio

        import httpx

        client = self._client(request)
        try:
            with ExitStack() as files:
                built = _build(client, self._profile, request, files, _chunks_async)
                answer = await client.send(built, stream=True)
                try:
                    if request.sink is None or not answer.is_success:
                        return _response(answer, await answer.aread())
                    with request.sink() as sink:
                        async for chunk in answer.aiter_bytes(_CHUNK):
                            await asyncio.to_thread(sink.write, chunk)
                    return _response(answer, b"")
                finally:
                    await answer.aclose()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _no_answer(request, self._profile, error) from error

    def _client(self, request: Request) -> httpx.AsyncClient:
        import httpx

        own = _is_own(request)
        if own not in self._clients:
            self._clients[own] = httpx.AsyncClient(**_options(self._profile, own))
        return self._clients[own]


class _Turn:
    """What goes into a call next, and what came out of it at its end."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.error: NoAnswer | None = None
        self.value: Any = None

    def next(self, call: Call[Any]) -> Command | None:
        """The call's next command, None when it has returned."""
        answer, error = self.answer, self.error
        self.answer = self.error = None
        try:
            return call.throw(error) if error is not None else call.send(answer)
        except StopIteration as stop:
            self.value = stop.value
            return None


def _is_own(request: Request) -> bool:
    return request.path.startswith("/")


def _options(profile: Profile, own: bool) -> dict[str, Any]:
    import httpx

    host = urlsplit(profile.url).hostname
    return {
        "verify": not (own and profile.url.startswith("http://")),
        # A proxy set for the outside must not get what stays on this machine.
        "trust_env": not (own and host in _LOOPBACK),
        "mounts": {f"all://{name}": None for name in ("127.0.0.1", "localhost", "[::1]")},
        "limits": httpx.Limits(max_connections=64, keepalive_expiry=_KEEP_ALIVE_S),
    }


def _build(
    client: httpx.Client | httpx.AsyncClient,
    profile: Profile,
    request: Request,
    files: ExitStack,
    chunks: Callable[[Request, Any], Any],
) -> httpx.Request:
    import httpx

    headers = {name.encode(): value.encode() for name, value in request.headers.items()}
    own = _is_own(request)
    if own and profile.token:
        headers[b"Authorization"] = f"Bearer {profile.token}".encode()
    more: dict[str, Any] = {"json": request.json} if request.json is not None else {}
    if request.parts:
        more["data"] = {name: value for name, value in request.parts if isinstance(value, str)}
        more["files"] = [(name, _part(value, files)) for name, value in request.parts if isinstance(value, Body)]
    if request.body is not None:
        headers[b"Content-Length"] = b"%d" % request.body.size
        if request.body.content_type:
            headers.setdefault(b"Content-Type", request.body.content_type.encode())
        more["content"] = chunks(request, _open(request.body, files))
    url = profile.url + request.path if own else request.path
    if not own:
        # As it was signed: httpx would take dot segments out of a key.
        parts = urlsplit(url)
        more["extensions"] = {"target": f"{parts.path}?{parts.query}".rstrip("?").encode("ascii")}
    timeout = httpx.Timeout(_ANSWER_S + request.wait_s, connect=_CONNECT_S, write=60.0)
    return client.build_request(
        request.method,
        url,
        params=dict(request.query) or None,
        headers=headers,
        timeout=timeout,
        **more,
    )


def _part(body: Body, files: ExitStack) -> tuple[str, Any, str]:
    # The real name travels in a field of its own: in a header some characters would not survive.
    return "file", _open(body, files), body.content_type or "application/octet-stream"


def _open(body: Body, files: ExitStack) -> Any:
    return body.content if isinstance(body.content, bytes) else files.enter_context(body.content.open("rb"))


def _chunks(request: Request, content: Any) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    while chunk := content.read(_CHUNK):
        yield chunk
        if request.on_sent is not None:
            request.on_sent(len(chunk))


async def _chunks_async(request: Request, content: Any) -> AsyncIterator[bytes]:
    for chunk in _chunks(request, content):
        yield chunk


def _response(answer: httpx.Response, content: bytes) -> Response:
    return Response(answer.status_code, {k.lower(): v for k, v in answer.headers.items()}, content)


def _no_answer(request: Request, profile: Profile, error: Exception) -> TidemillError:
    import httpx

    where = urlsplit(profile.url if _is_own(request) else request.path)
    place = f"{where.scheme}://{where.netloc}"
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        return InvalidSpec(f"{place} is not an address: {error}", hint="Check TIDEMILL_URL and the profile file.")
    sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    what = str(error) or type(error).__name__
    return NoAnswer(f"{place} does not answer: {what}", sent=sent)
