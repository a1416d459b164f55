"""Messages of every kind that nobody should send: names, forms, sizes, records that are almost right.

They are meant for a run in which request 1 is settled, 2 and 3 wait for approvals, 4 was approved, 5 waits for a result
from outside, 6 asks whether 4 happened, and tool step 1 is stuck.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from temporalio import workflow

from interlock.contracts.payloads import Decision
from interlock.workflows.agent import AgentWorkflow
from tests.workflows.raw_messages import Body, Kind, Message

SENT_SECRET = "sk-sent-by-a-stranger-0123456789"
MASKED = {"api_key": "[masked]"}
RUN_ID = b"00000000-0000-0000-0000-000000000000"
NOW = "2026-11-01T12:00:00Z"

# What is awkward to write down, by the word that stands for it in an example.
AWKWARD: dict[str, bytes] = {
    "@deep list@": b"[" * 1_000 + b"]" * 1_000,
    "@deep object@": b'{"a":' * 1_000 + b"1" + b"}" * 1_000,
    **{f"@{depth} deep@": b"[" * depth + b"]" * depth for depth in (99, 101, 150, 197, 198)},
    **{f"@{digits} digits@": b"9" * digits for digits in (400, 4_300, 5_000)},
    "@infinite@": b"1e999",
    "@infinity@": b"-Infinity",
    "@no number@": b"NaN",
    "@surrogate@": b'"\\ud800"',
    "@nul@": b'"\\u0000"',
    **{f"@{size} x@": b'"' + b"x" * size + b'"' for size in (201, 501, 1_001, 2_001, 10_001, 1_900_000)},
}


def handlers(kind: str, of: type = AgentWorkflow) -> dict[str, type[BaseModel]]:
    """The names that the workflow listens to, with what each takes."""
    found = getattr(workflow._Definition.must_from_class(of), kind)
    return {str(name): (handler.arg_types or [Decision])[0] for name, handler in found.items()}


SIGNALS, UPDATES = handlers("signals"), handlers("updates")
QUERIES: dict[str, type[BaseModel]] = {
    **handlers("queries"),
    "__stack_trace": Decision,
    "__temporal_workflow_metadata": Decision,
}


def written(value: Any) -> bytes:
    return json.dumps(value).encode()


def as_sent(data: bytes) -> bytes:
    """The JSON with what is awkward in the place of the words for it."""
    for word, meant in AWKWARD.items():
        data = data.replace(f'"{word}"'.encode(), meant)
    return data


def aimed(message: Message, run_id: str, digests: Mapping[str, str]) -> Message:
    """The message as it goes out to a run. digests: of the run's requests, by their ids."""
    stands = {"#run#": run_id, "#foreign#": "0" * 64}
    stands |= {f"#digest {request_id}#": digest for request_id, digest in digests.items()}

    def body(one: Body) -> Body:
        data = one.data
        for word, meant in stands.items():
            data = data.replace(word.encode(), meant.encode())
        return replace(one, data=as_sent(data))

    return replace(message, bodies=tuple(body(one) for one in message.bodies))


def right(model: type[BaseModel], request_id: str, call_id: str) -> dict[str, Any]:
    """A record that a run would take, with words in place of what only the run knows."""
    known: dict[str, Any] = {
        "request_id": request_id,
        "call_id": call_id,
        "digest": f"#digest {request_id}#",
        "verdict": "happened" if request_id == "6" else "approve",
        "workflow_id": "#run#/support-1",
        "agent": "support",
        "session_id": "#session#",
        "run_id": "#turn#",
        "framework": "pydantic-ai",
    }
    times = {name: NOW for name in model.model_fields if name.endswith("_at")}
    return {name: value for name, value in {**known, **times}.items() if name in model.model_fields}


def harmless(model: type[BaseModel], record: Any) -> Any:
    """The record; made out to another request or run where this one would take it."""
    try:
        model.model_validate_json(as_sent(written(record)).replace(b"#turn#", RUN_ID))
    except ValidationError:
        return record
    others = {"digest": "#foreign#", "workflow_id": "#foreign#/support-1", "step": "7", "session_id": "#foreign#"}
    return {**record, **{name: value for name, value in others.items() if name in model.model_fields}}


texts = st.one_of(
    st.sampled_from(["", " ", SENT_SECRET, "approve", "1", "null", "é\u202e😀", "a\x00b", "[x](javascript:1) `|<b>"]),
    st.text(max_size=8),
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
    st.sampled_from(sorted(AWKWARD)),
)
names = texts.filter(lambda text: text != SENT_SECRET)  # A refusal says under which name something does not fit.
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=5
)
ids = values.filter(lambda value: SENT_SECRET not in str(value))  # And which request it is about.


@st.composite
def unfit(draw: st.DrawFn, model: type[BaseModel]) -> dict[str, Any]:
    """A record for what really waits, but of a kind or with contents that do not fit it."""
    if "usage_limits" in model.model_fields:  # What is stuck did not fail by a limit.
        limits = draw(st.dictionaries(st.sampled_from(["request_limit", "zzz"]), values))
        return {**right(model, "", ""), "step": draw(st.sampled_from(["", "1"])), "usage_limits": limits}
    if "verdict" not in model.model_fields:
        return right(model, *draw(st.sampled_from([("2", "b"), ("2", "2"), ("6", "6"), ("1", "a")])))
    if draw(st.booleans()):
        verdicts = [("2", "happened"), ("5", "approve"), ("5", "give_up"), ("6", "approve"), ("6", "reject")]
        request_id, verdict = draw(st.sampled_from(verdicts))
        return {**right(model, request_id, ""), "verdict": verdict}
    edit = draw(st.dictionaries(st.sampled_from(["memo", "note", "amount"]) | names, values, max_size=3))
    edit.pop("order", None)  # Without it the edit fits no tool.
    return {**right(model, draw(st.sampled_from(["2", "3"])), ""), "arguments": {**edit, **MASKED}}


@st.composite
def almost_right(draw: st.DrawFn, model: type[BaseModel]) -> Any:
    """A record that lacks something, holds something else instead, or is meant for another."""
    known = [("1", "a"), ("2", "b"), ("4", "d"), ("5", "e"), ("6", "d"), ("7", "f"), ("", ""), ("5", "5")]
    record = right(model, *draw(st.sampled_from(known)))
    for name in draw(st.lists(st.sampled_from(sorted(model.model_fields)), max_size=2)):
        old = record.pop(name, None)
        match draw(st.sampled_from(["drop", "replace", "rename", "naive", "list"])):
            case "replace":
                record[name] = draw(ids if name.endswith("_id") else values)
            case "rename":
                record[name.upper()] = old
            case "naive":
                record[name] = "2026-11-01T12:00:00"
            case "list":
                record[name] = [old]
    match draw(st.sampled_from(["as it is"] * 8 + ["in a list", "as text"])):
        case "in a list":
            return [record]
        case "as text":
            return json.dumps(record)
        case _:
            return harmless(model, record)


odd_bodies = st.builds(
    Body,
    data=st.sampled_from([b"", b"null", b"{", b'"\xff"', b'{"a":1}{"a":2}', SENT_SECRET.encode(), b'{"request_id":'])
    | st.binary(max_size=20),
    encoding=st.sampled_from(
        [b"json/plain", b"binary/plain", b"binary/null", b"json/protobuf", b"binary/protobuf", b"\xff\xfe", b"", None]
    ),
    metadata=st.sampled_from([{}, {"messageType": b"temporal.api.common.v1.Payload"}, {"messageType": b"\xff"}]),
)
headers = st.dictionaries(st.sampled_from(["_tracer-data", "temporal", "", "é"]), odd_bodies, max_size=2)
unknown_names = st.sampled_from(["", "nobody", "DECIDE_APPROVAL", "__temporal_x", "n" * 1_001, "a\x00\u202e"])


def bodies(model: type[BaseModel]) -> st.SearchStrategy[tuple[Body, ...]]:
    records = [almost_right(model), values]
    if {"request_id", "call_id", "usage_limits"} & set(model.model_fields):
        records.append(unfit(model))
    body = st.one_of(*(record.map(written).map(Body) for record in records), odd_bodies)
    return st.one_of(body.map(lambda one: (one,)), st.lists(body, max_size=3).map(tuple))


def messages(kind: Kind, known: Mapping[str, type[BaseModel]]) -> st.SearchStrategy[Message]:
    """Messages that change nothing, of one kind, to the names given and to some that nobody listens to."""

    def named(name: str) -> st.SearchStrategy[Message]:
        return st.builds(Message, st.just(kind), st.just(name), bodies(known[name]), headers)

    unknown = st.builds(Message, st.just(kind), unknown_names, bodies(Decision), headers)
    return st.one_of(*(named(name) for name in sorted(known)), unknown)
