"""The HTTP side: one request per connection, so that nothing is left open, and any way of breaking off is possible."""

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from openai import AsyncOpenAI

from tests.openai_api import chat, responses
from tests.openai_api.script import (
    Answer,
    Attempts,
    Cut,
    Dropped,
    Malformed,
    Reply,
    Request,
    Script,
    Slow,
    Text,
    Turn,
    error,
    reply,
)

_PATHS = ("/v1/responses", "/v1/chat/completions")
_STREAM = {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"}
_BROKEN = {"message": "scripted", "type": "server_error", "param": None, "code": "server_error"}


class OpenAIAPI:
    """A running server. requests: all that arrived, whatever their path; `Script.requests` has those of one model."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Request] = []
        self._scripts: dict[str, Script] = {}
        self._stored: dict[str, list[Any]] = {}
        self._answered = 0
        self._connections: set[asyncio.Task[Any]] = set()
        self._clients: list[AsyncOpenAI] = []

    @classmethod
    @asynccontextmanager
    async def running(cls) -> AsyncIterator["OpenAIAPI"]:
        api = cls()
        server = await asyncio.start_server(api._connected, "127.0.0.1", 0)
        api.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            yield api
        finally:
            for client in api._clients:
                await client.close()
            server.close()
            for connection in api._connections:
                connection.cancel()
            await asyncio.gather(*api._connections, return_exceptions=True)
            await server.wait_closed()

    def script(self, *turns: Turn, model: str = "scripted", earlier_answers: int = 0) -> Script:
        """What the server answers for a model of this name, from now on."""
        script = Script(model, turns, earlier_answers)
        self._scripts[model] = script
        return script

    def client(self, **options: Any) -> AsyncOpenAI:
        """The SDK's client for this server. Attempts are the caller's business, so it makes none of its own."""
        client = AsyncOpenAI(**{"base_url": self.url, "api_key": "test", "max_retries": 0, **options})
        self._clients.append(client)
        return client

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        try:
            request = await _read(reader)
            await self._answer(self._known(request), writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # The client has gone, or the test is over.
        finally:
            self._connections.discard(task)
            writer.close()

    def _known(self, request: Request) -> Request:
        """The request with its conversation."""
        if isinstance(request.body, dict):
            given = request.body.get("messages" if request.is_chat else "input") or []
            items = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
            earlier = self._stored.get(str(request.body.get("previous_response_id")), [])
            request = Request(
                request.method, request.path, request.headers, request.body, request.at, [*earlier, *items]
            )
        self.requests.append(request)
        return request

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        refused = self._refused(request)
        if refused is not None:
            return await _send(writer, refused)
        script = self._scripts[request.model]
        script.requests.append(request)
        try:
            turn = await _settled(script.turn(request), request)
            await self._give(turn, request, writer)
        except (LookupError, AssertionError) as wrong:  # Of the script: not tried again, and told.
            await _send(writer, error(400, message=str(wrong)))

    def _refused(self, request: Request) -> Reply | None:
        """What the API says to a request that it does not take."""
        if request.method != "POST" or request.path not in _PATHS or not isinstance(request.body, dict):
            return error(404, message=f"There is no {request.method} {request.path}.")
        if request.model not in self._scripts:
            return error(404, code="model_not_found", message=f"The model {request.model!r} does not exist.")
        previous = request.body.get("previous_response_id")
        if previous and previous not in self._stored:
            return error(400, code="previous_response_not_found", message=f"There is no response {previous!r}.")
        try:
            unmatched = sorted(set(request.calls) ^ set(request.results))
        except (AttributeError, KeyError, TypeError):
            return error(400, code="invalid_value", message="One of the items of the input is none.")
        if unmatched:
            return error(400, message=f"Not both a call and its output for: {', '.join(unmatched)}.")
        return None

    async def _give(self, turn: Any, request: Request, writer: asyncio.StreamWriter) -> None:
        match turn:
            case Reply():
                await _send(writer, turn)
            case Dropped():
                writer.transport.abort()
            case Malformed() if request.streams:
                await _send(writer, reply('data: {"id": "x", "choic\n\n', 200, _STREAM["content-type"]))
            case Malformed():
                await _send(writer, reply('{"id": "x", "outp'))
            case Cut(answer, after, how):
                await self._give_answer(answer, request, writer, cut=(after, how))
            case Answer():
                await self._give_answer(turn, request, writer)
            case _:
                items = [Text(turn)] if isinstance(turn, str) else list(turn)
                await self._give_answer(Answer(items), request, writer)

    async def _give_answer(
        self, answer: Answer, request: Request, writer: asyncio.StreamWriter, cut: tuple[int, str] | None = None
    ) -> None:
        self._answered += 1
        api: Any = chat if request.is_chat else responses
        whole = api.whole(answer, request, self._answered)
        if not request.is_chat and request.body.get("store") is not False:
            self._stored[whole.id] = [*request.conversation, *(item.to_dict() for item in whole.output)]
        if not request.streams:
            return await _send_whole(writer, whole.to_json(indent=None).encode(), cut)
        written = [_event(event) for event in api.events(answer, request, self._answered)]
        if request.is_chat:
            written.append(b"data: [DONE]\n\n")
        await _stream(writer, written, answer.pause_seconds, cut, error_event=_error_event(request))


async def _settled(turn: Any, request: Request) -> Any:
    """A turn that is there to be sent."""
    while True:
        if isinstance(turn, Slow):
            await asyncio.sleep(turn.seconds)
            turn = turn.then
        elif callable(turn):
            turn = turn(request)
            if inspect.isawaitable(turn):
                turn = await turn
        elif isinstance(turn, Attempts):
            raise AssertionError("`attempts(...)` stands alone: not behind `slow`, nor from a function.")
        else:
            return turn


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    raw = await reader.readexactly(int(headers.get("content-length", 0)))
    body = json.loads(raw) if raw else None
    return Request(method, path.partition("?")[0], headers, body, asyncio.get_running_loop().time())


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"{name}: {value}" for name, value in {**headers, "connection": "close", "x-request-id": "req_1"}.items()]
    return "\r\n".join([f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *lines, "", ""]).encode()


async def _send(writer: asyncio.StreamWriter, answer: Reply) -> None:
    writer.write(_head(answer.status, {**answer.headers, "content-length": str(len(answer.body))}) + answer.body)
    await writer.drain()


async def _send_whole(writer: asyncio.StreamWriter, body: bytes, cut: tuple[int, str] | None) -> None:
    if cut is None:
        return await _send(writer, reply(body))
    _, how = cut
    if how == "error":
        return await _send(writer, reply({"error": _BROKEN}))
    half = body[: len(body) // 2]
    length = len(body) if how == "dropped" else len(half)
    writer.write(_head(200, {"content-type": "application/json", "content-length": str(length)}) + half)
    await writer.drain()


async def _stream(
    writer: asyncio.StreamWriter,
    events: list[bytes],
    pause_seconds: float,
    cut: tuple[int, str] | None,
    *,
    error_event: bytes,
) -> None:
    writer.write(_head(200, _STREAM))
    after, how = cut or (len(events), "ended")
    for event in [*events[:after], *([error_event] if how == "error" else [])]:
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))
        await writer.drain()
        await asyncio.sleep(pause_seconds)
    if how != "dropped":
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def _event(event: Any) -> bytes:
    kind = getattr(event, "type", None)
    name = f"event: {kind}\n" if kind else ""
    return f"{name}data: {event.to_json(indent=None)}\n\n".encode()


def _error_event(request: Request) -> bytes:
    if request.is_chat:
        return f"data: {json.dumps({'error': _BROKEN})}\n\n".encode()
    body = {**_BROKEN, "type": "error", "sequence_number": 99}
    return f"event: error\ndata: {json.dumps(body)}\n\n".encode()
