"""How model calls are written that go on from others, and how they are read."""

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic_core import from_json, to_json
from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from interlock.activities.conversation import WholeRequests
from interlock.contracts import conversation, names
from interlock.contracts.conversation import Request

ODD = ['","then":[', '"then":', "\\", '\\"', "]}", "ß\u2028", "", "[1]"]


def parts(messages: list[Any], **others: Any) -> Request:
    empty = conversation.emptied("messages", to_json({"messages": [], **others}))
    assert empty
    return Request(empty.head, to_json(messages), empty.tail)


def payload(request: Request) -> Payload:
    return Payload(
        metadata={"encoding": b"json/plain", conversation.METADATA: b"%d" % len(request.messages)}, data=request.data()
    )


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("others", [{}, {"then": [1], "more": {"messages": ['"then":']}}])
def test_what_is_written_is_read(text: str, count: int, others: dict[str, Any]) -> None:
    whole = parts([{"text": text}] * count, **others)
    following = Request(whole.head, whole.messages, whole.tail, f"{text}/model:1", "0a")

    for request in (whole, following):
        assert conversation.read(request.data(), len(request.messages)) == request
        from_json(request.data())
    assert from_json(whole.data()) == {"messages": [{"text": text}] * count, **others}


@pytest.mark.parametrize("then", [[], [{"text": one} for one in ODD]])
def test_what_comes_after_a_list_is_found_and_joined_again(then: list[Any]) -> None:
    before = [{"text": one} for one in reversed(ODD)]
    text, all_of_it = to_json(before), to_json(before + then)

    found = conversation.rest(all_of_it, len(text), conversation.digest_of(text))

    assert found == to_json(then)
    assert conversation.joined([text, found]) == all_of_it


@pytest.mark.parametrize(
    "messages",
    [
        [{"text": "another"}, {"text": "b"}, {"text": "c"}],
        [{"text": "a"}],
        [{"text": "a"}, {"text": "b!"}],
        [],
    ],
)
def test_messages_that_begin_otherwise_do_not_follow(messages: list[Any]) -> None:
    text = to_json([{"text": "a"}, {"text": "b"}])

    assert conversation.rest(to_json(messages), len(text), conversation.digest_of(text)) is None


def test_an_input_that_is_written_otherwise_is_left_alone() -> None:
    assert conversation.emptied("messages", b'{"model":"m","messages":[]}') is None
    assert conversation.emptied("messages", b"[]") is None
    assert conversation.read(b'{"model":"m","messages":[]}', 2) is None


class Stored:
    """A history with these model calls."""

    def __init__(self, calls: Mapping[str, Payload]) -> None:
        self._calls = calls

    async def result(self, step: Any) -> Any:
        raise NotImplementedError

    async def model_calls(self, workflow_id: str, run_id: str) -> Mapping[str, Payload]:
        return self._calls


async def read(step: str, calls: Mapping[str, Payload]) -> list[Any]:
    """The messages that a model call of the history is given by a worker which remembers nothing."""
    header = {names.HEADER_STEP: DataConverter.default.payload_converter.to_payload(step)}
    whole = await ActivityEnvironment().run(WholeRequests(Stored(calls))._whole, calls[step], header)
    messages: list[Any] = from_json(whole.data)["messages"]
    return messages


def follower(before: Request, then: list[Any], follows: str, *, digest: str | None = None) -> Request:
    told = conversation.digest_of(before.messages) if digest is None else digest
    return Request(before.head, to_json(then), before.tail, follows, told)


async def test_messages_are_put_together_over_any_number_of_calls() -> None:
    first = parts([1, 2], settings={})
    second = follower(first, [3], "a")
    third = follower(parts([1, 2, 3]), [], "b")
    fourth = follower(parts([1, 2, 3]), [4, 5], "c", digest="")
    calls = {name: payload(one) for name, one in zip("abcd", (first, second, third, fourth), strict=True)}

    assert await read("d", calls) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("data", [{"messages": [1, 2], "settings": {"input": [0]}}, {"model": None, "input": [1, 2]}])
async def test_they_go_on_from_a_call_that_was_written_before_there_were_references(data: dict[str, Any]) -> None:
    plain = Payload(metadata={"encoding": b"json/plain"}, data=to_json(data))

    assert await read("b", {"a": plain, "b": payload(follower(parts([1, 2]), [3], "a", digest=""))}) == [1, 2, 3]


@pytest.mark.parametrize(
    ("follows", "digest", "why"),
    [("x", None, "is not in the history"), ("b", "", "is not in the history"), ("a", "0a", "has other messages")],
)
async def test_what_is_not_as_it_was_written_is_refused(follows: str, digest: str | None, why: str) -> None:
    first = parts([1, 2])
    calls = {"a": payload(first), "b": payload(follower(first, [3], follows, digest=digest))}

    with pytest.raises(ApplicationError, match=why) as failed:
        await read("b", calls)

    assert (failed.value.type, failed.value.non_retryable) == (names.CONVERSATION_LOST, True)
