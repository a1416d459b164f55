"""What the server answers, turn by turn, and what it was asked."""

import itertools
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

INPUT_TOKENS = 10
OUTPUT_TOKENS = 5
"""What an answer costs unless it says otherwise."""


@dataclass(frozen=True)
class Text:
    text: str
    refused: bool = False


@dataclass(frozen=True)
class Call:
    """A call of a function. arguments: as JSON, or whatever a model may write instead. call_id: made up when empty."""

    tool: str
    arguments: str
    call_id: str = ""


@dataclass(frozen=True)
class Approval:
    """A hosted MCP server's tool that is only called once the caller has approved; Responses only."""

    tool: str
    arguments: str
    server: str
    request_id: str


Item = Text | Call | Approval | Mapping[str, Any]
"""A mapping is a Responses item as it travels, such as `mcp_call` or `reasoning`."""


@dataclass(frozen=True)
class Answer:
    """What a model answers.

    incomplete: why it stopped early, in the words of the Responses API. pause_seconds: between two events of a stream.
    """

    items: Sequence[Item]
    input_tokens: int = INPUT_TOKENS
    output_tokens: int = OUTPUT_TOKENS
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    incomplete: Literal["max_output_tokens", "content_filter"] | None = None
    pause_seconds: float = 0


@dataclass(frozen=True)
class Reply:
    """An HTTP answer as it stands."""

    status: int
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Cut:
    """An answer that breaks off, after this many events of a stream or in the middle of a plain body.

    how: the connection is dropped, the body ends as if it were whole, or an error takes the place of the rest.
    """

    answer: Answer
    after: int
    how: Literal["dropped", "ended", "error"]


@dataclass(frozen=True)
class Dropped:
    """The connection is closed without an answer."""


@dataclass(frozen=True)
class Malformed:
    """What calls itself JSON, or an event stream, and is none."""


@dataclass(frozen=True)
class Slow:
    seconds: float
    then: "Turn"


@dataclass(frozen=True)
class Attempts:
    """One after another, each time the turn is asked for; the last is given from then on."""

    turns: Sequence["Turn"]


Turn = (
    str
    | Sequence[Item]
    | Answer
    | Reply
    | Cut
    | Dropped
    | Malformed
    | Slow
    | Attempts
    | Callable[["Request"], Any | Awaitable[Any]]
)
"""A function is given the request, and returns any of the others; it may be asynchronous."""


def call(tool: str, call_id: str = "", /, **arguments: Any) -> Call:
    """A call of a function, as a model makes it."""
    return Call(tool, json.dumps(arguments), call_id)


def approval(tool: str, request_id: str, /, *, server: str, **arguments: Any) -> Approval:
    """A hosted MCP server's request to approve a call."""
    return Approval(tool, json.dumps(arguments), server, request_id)


def refusal(text: str) -> list[Item]:
    """The model declines."""
    return [Text(text, refused=True)]


def answer(*items: Item | str, **options: Any) -> Answer:
    """An answer with its costs. options: the fields of `Answer`."""
    return Answer([Text(item) if isinstance(item, str) else item for item in items], **options)


def error(status: int, *, code: str | None = None, message: str = "scripted", **headers: str | float) -> Reply:
    """An error as the API gives it. headers: such as `retry_after=1`, `retry_after_ms=50`, `x_should_retry="true"`."""
    kind = "server_error" if status >= 500 else "rate_limit_exceeded" if status == 429 else "invalid_request_error"
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return reply(body, status, **{name.replace("_", "-"): str(value) for name, value in headers.items()})


def reply(body: Any, status: int = 200, content_type: str = "application/json", /, **headers: str) -> Reply:
    """Any HTTP answer. body: text, bytes, or what is written as JSON."""
    text = body if isinstance(body, str | bytes) else json.dumps(body)
    raw = text if isinstance(text, bytes) else text.encode()
    return Reply(status, raw, {"content-type": content_type, **headers})


def dropped() -> Dropped:
    """The connection is closed without an answer."""
    return Dropped()


def malformed() -> Malformed:
    """A body that is no JSON, or events that are none."""
    return Malformed()


def cut(turn: str | Answer, *, after: int = 3, how: Literal["dropped", "ended", "error"] = "dropped") -> Cut:
    """An answer that breaks off. See `Cut`."""
    return Cut(turn if isinstance(turn, Answer) else answer(turn), after, how)


def slow(seconds: float, then: Turn) -> Slow:
    """Nothing for so long, and then this."""
    return Slow(seconds, then)


def attempts(*turns: Turn) -> Attempts:
    """What a turn gives the first time it is asked for, the second time, and so on; the last again and again."""
    return Attempts(turns)


@dataclass(frozen=True)
class Request:
    """One request as it arrived. at: by the clock of the event loop.

    conversation: all that the model knows: the input items or messages, behind those of an earlier response that the
    request goes on from.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any
    at: float
    conversation: Sequence[Any] = ()

    @property
    def is_chat(self) -> bool:
        return self.path.endswith("/chat/completions")

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def model(self) -> str:
        return str(self.body.get("model"))

    @property
    def tools(self) -> list[str]:
        """The names of the functions that the model may call."""
        tools = self.body.get("tools") or []
        return [tool.get("function", tool).get("name", tool["type"]) for tool in tools]

    @property
    def answers(self) -> int:
        """How many answers of a model the conversation holds. One answer may be several items in a row."""
        return sum(by_model for by_model, _ in itertools.groupby(self.conversation, _is_of_model))

    @property
    def prompt(self) -> str:
        """The first thing a user said."""
        return next((_text(item) for item in self.conversation if item.get("role") == "user"), "")

    @property
    def results(self) -> dict[str, Any]:
        """What the model was told of each call, by call id."""
        return {
            **{item["tool_call_id"]: item["content"] for item in self.conversation if item.get("role") == "tool"},
            **{
                item["call_id"]: item["output"]
                for item in self.conversation
                if item.get("type") == "function_call_output"
            },
        }

    @property
    def calls(self) -> list[str]:
        """The ids of all calls of functions that the model made so far."""
        made = [item["call_id"] for item in self.conversation if item.get("type") == "function_call"]
        return made + [one["id"] for item in self.conversation for one in item.get("tool_calls") or ()]


@dataclass
class Script:
    """One model of the server: an answer for each turn. It remembers what it was asked.

    The turn is the number of answers in the conversation, so a request that is made again gets the same answer.
    """

    model: str
    turns: Sequence[Turn]
    earlier_answers: int = 0
    requests: list[Request] = field(default_factory=list)
    _asked: Counter[tuple[int, str]] = field(default_factory=Counter)

    @property
    def calls(self) -> int:
        """How often the model was asked."""
        return len(self.requests)

    def turn(self, request: Request) -> Turn:
        """What to answer. Raises LookupError behind the end of the script."""
        number = request.answers - self.earlier_answers
        if not 0 <= number < len(self.turns):
            raise LookupError(f"The script of {self.model!r} has {len(self.turns)} turns, but turn {number} was asked.")
        key = (number, request.prompt)
        self._asked[key] += 1
        turn = self.turns[number]
        if not isinstance(turn, Attempts):
            return turn
        return turn.turns[min(self._asked[key], len(turn.turns)) - 1]


def _is_of_model(item: Mapping[str, Any]) -> bool:
    if "role" in item:
        return bool(item["role"] == "assistant")
    kind = str(item.get("type"))
    return not kind.endswith(("_output", "_response", "_reference"))


def _text(item: Mapping[str, Any]) -> str:
    content = item.get("content")
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())
