"""A request as a Required Action: its text, form and buttons, and what an answer to it means."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import AwareDatetime, Field

from interlock._text import HARMFUL, line, plain
from interlock.bridge.asked import Asked
from interlock.contracts.masking import call_label
from interlock.contracts.payloads import ApprovalRequest, Json, Payload, Receipt
from interlock.run import Run

REASON, ARGUMENTS, RESULT, FORM = "reason", "arguments", "result", "form"
_COMPLETE, _FAIL = "complete", "fail"  # Beside the verdicts: what is reported of a call that ran outside.
_COMMENT = "//"
_LONGEST_NAME = 180


@dataclass(frozen=True)
class _Kind:
    """What is asked of a kind of request. options: what each button means. editable: the field with JSON, if any."""

    subject: str
    sentence: str
    options: Mapping[str, str]
    editable: str = ""
    hint: str = ""
    reason: str = "Why; the model reads it when the call is rejected."


_KINDS = {
    "approval": _Kind(
        "Approve {label}?",
        "wants to run **{tool}**.",
        {"Approve": "approve", "Reject": "reject"},
        ARGUMENTS,
        "What is to run, as JSON. Left as it is: what was asked for. A masked value that is left keeps the real one.",
    ),
    "tool_result": _Kind(
        "What is the result of {label}?",
        "waits for the result of **{tool}**.",
        {"Report result": _COMPLETE, "Report error": _FAIL, "Reject": "reject"},
        RESULT,
        'With Report result: what the call gave back, as JSON, such as 42 or "done".',
        "With Report error: what went wrong. With Reject: why. The model reads it.",
    ),
    "outcome": _Kind(
        "Did {label} happen?",
        "does not know what became of an approved call of **{tool}**.",
        {"It happened": "happened", "It did not happen": "not_happened", "Give up": "give_up"},
        RESULT,
        "With It happened: what the call gave back, as JSON, for the model.",
        "For whoever looks at this later.",
    ),
    "budget": _Kind(
        "Extend the {label}?",
        "has used up its budget. It could be extended by this:",
        {"Extend": "approve", "Reject": "reject"},
        ARGUMENTS,
        "By how much, as JSON.",
        "Why; it is kept with the decision.",
    ),
    "output": _Kind(
        "Accept {label}?",
        "proposes this as its output:",
        {"Accept": "approve", "Ask for changes": "reject", "Give up": "give_up"},
        ARGUMENTS,
        "The output, as JSON. Left as it is: what was proposed.",
        "With Ask for changes: what is to change; the model reads it.",
    ),
}
# A kind that this version does not know can be looked at, and is decided where it is known.
_UNKNOWN = _Kind("Decide {label}", "asks about **{tool}**.", {"Look again": ""})

_CLOSING = {
    "approved": "Approve",
    "rejected": "Reject",
    "completed": "Report result",
    "failed": "Report error",
    "happened": "It happened",
    "not_happened": "It did not happen",
    "given_up": "Give up",
}


class BadAnswerError(ValueError):
    """What is wrong with an answer, for whoever gave it."""


class Answer(Payload):
    """What a person said to a Required Action. by: who, as the decision keeps it. values: of the form."""

    options: tuple[str, ...]
    values: dict[str, Json] = Field(default_factory=dict)
    by: str
    at: AwareDatetime | None = None

    @classmethod
    def read(cls, event: Mapping[str, Any]) -> "Answer | None":
        """The answer that an event of Airflow's carries; None for one that nobody has given."""
        user = event.get("responded_by_user")
        if not user or not event.get("chosen_options"):
            return None
        user_id, name = str(user["id"]), str(user["name"])
        by = name if name == user_id else f"{name}/{user_id}"
        return cls(
            options=tuple(event["chosen_options"]),
            values=event.get("params_input") or {},
            by=f"airflow:{line(by)[:_LONGEST_NAME]}",
            at=event.get("responded_at"),
        )

    def text(self, name: str) -> str:
        """A field of the form; empty when it was not filled in."""
        value = self.values.get(name)
        if isinstance(value, dict) and set(value) >= {"value", "schema"}:  # Sent back as it was described.
            value = value["value"]
        if value is None:
            return ""
        return value.strip() if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class Form:
    """A Required Action. params: its fields, as Airflow describes them. body: Markdown."""

    subject: str
    body: str
    options: list[str]
    params: dict[str, Any]


def form_of(request: ApprovalRequest, asked: Asked, *, requested_by: str, links: Mapping[str, str]) -> Form:
    """How a request is shown. links: addresses by their names."""
    kind = _KINDS.get(request.kind, _UNKNOWN)
    label = line(call_label(request.tool, request.arguments))
    fields: dict[str, Any] = {}
    if kind.editable:
        text = _editable(request) if kind.editable == ARGUMENTS else ""
        fields[kind.editable] = _field(text, kind.hint, multiline=True)
    if kind is not _UNKNOWN:
        fields[REASON] = _field("", kind.reason)
    if asked.form_id:
        fields[FORM] = _field(asked.form_id, "Which request this answers. Leave it as it is.")
    return Form(
        kind.subject.format(label=label), _body(request, asked, kind, requested_by, links), [*kind.options], fields
    )


async def send(run: Run, request: ApprovalRequest, answer: Answer, *, form_id: str = "") -> Receipt:
    """Tell the run what a person has answered. form_id: of the form that asks for it. Raises BadAnswerError for an
    answer that cannot be sent, and what `Run.decide` raises."""
    if form_id and answer.text(FORM) != form_id:
        raise BadAnswerError(
            f"The answer is not one to this form, whose field {FORM!r} is {form_id!r}: another request was shown here "
            "when it was opened. Nothing was decided."
        )
    kind = _KINDS.get(request.kind, _UNKNOWN)
    verdict: Any = kind.options.get(answer.options[0] if len(answer.options) == 1 else "")
    if not verdict:
        raise BadAnswerError("It cannot be decided here. See the links below." if kind is _UNKNOWN else "Choose one.")
    reason = answer.text(REASON)
    if verdict == _FAIL:
        return await run.complete_tool_call(
            request.request_id, error=reason or "It failed.", digest=request.digest, by=answer.by
        )
    if verdict == _COMPLETE:
        result = _json(answer.text(RESULT), RESULT)
        return await run.complete_tool_call(request.request_id, result=result, digest=request.digest, by=answer.by)
    return await run.decide(
        request.request_id,
        verdict,
        reason=reason,
        arguments=_edited(request, answer) if verdict == "approve" else None,
        result=_json(text, RESULT) if verdict == "happened" and (text := answer.text(RESULT)) else None,
        digest=request.digest,
        by=answer.by,
    )


def as_text(value: Json) -> str:
    """JSON for people to read and edit: nothing in it that cannot be seen, and numbers as exact as they are."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return HARMFUL.sub(lambda found: json.dumps(found[0])[1:-1], text)


def closing_option(outcome: str) -> str:
    """What a Required Action is closed with: the button's text where there is one, which Airflow's pages go by."""
    return _CLOSING.get(outcome, outcome.replace("_", " ").capitalize())


def _editable(request: ApprovalRequest) -> str:
    # Airflow's form reads a text that is a JSON object as one, shows it as `[object Object]`, and rounds long numbers.
    return f"{_COMMENT} As JSON.\n{as_text(request.arguments)}"


def _edited(request: ApprovalRequest, answer: Answer) -> dict[str, Json] | None:
    text = answer.text(ARGUMENTS)
    if not text or text == _editable(request):
        return None
    value = _json(text, ARGUMENTS)
    if not isinstance(value, dict):
        raise BadAnswerError("The arguments are a JSON object with a value for each name; this is none.")
    # Not by `==`, for which 1 is true.
    same = json.dumps(value, sort_keys=True) == json.dumps(request.arguments, sort_keys=True)
    return None if same else value


def _json(text: str, what: str) -> Json:
    lines = text.splitlines()
    while lines and lines[0].startswith(_COMMENT):
        del lines[0]
    try:
        value: Json = json.loads("\n".join(lines), parse_constant=_refuse, parse_float=_finite)
        json.dumps(value)
    except (ValueError, RecursionError) as error:
        raise BadAnswerError(f"This is no JSON, in the field {what!r}: {error}. Nothing was decided.") from error
    return value


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


def _finite(word: str) -> float:
    number = float(word)
    return number if math.isfinite(number) else _refuse(word)


def _field(value: str, description: str, *, multiline: bool = False) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": ["string", "null"]}
    if multiline:
        schema["format"] = "multiline"
    return {"value": value, "description": description, "schema": schema}


def _body(request: ApprovalRequest, asked: Asked, kind: _Kind, requested_by: str, links: Mapping[str, str]) -> str:
    path = " / ".join(request.agent_path)
    parts = [f"**Asked again.** {escaped(asked.said)}" if asked.said else ""]
    parts.append(f"**{escaped(path)}** {kind.sentence.format(tool=escaped(request.tool))}")
    parts.append(escaped(request.question))
    parts.append(_block(as_text(request.arguments), "json"))
    parts.append(escaped(request.description))
    if request.metadata is not None:
        parts.append(f"The tool says:\n\n{_block(as_text(request.metadata), 'json')}")
    asked_for = f" for {escaped(requested_by)}" if requested_by else ""
    parts.append(
        f"Asked {request.requested_at:%Y-%m-%d %H:%M:%S} UTC{asked_for}: request {escaped(request.request_id)} of run "
        f"{escaped(request.workflow_id)}."
    )
    if request.escalated_to:
        parts.append(f"Escalated to {escaped(', '.join(request.escalated_to))}.")
    if request.expires_at is not None:
        follows = "the run fails" if request.then == "fail" else "it is denied"
        parts.append(f"If nobody has answered by {request.expires_at:%Y-%m-%d %H:%M:%S} UTC, {follows}.")
    parts.append(" · ".join(f"[{name}]({address})" for name, address in links.items() if address))
    return "\n\n".join(part for part in parts if part)


def _block(text: str, language: str) -> str:
    fence = "`" * max([3, *(len(found) + 1 for found in re.findall("`{3,}", text))])
    return f"{fence}{language}\n{text}\n{fence}"


def escaped(text: str) -> str:
    """A text as Markdown that shows it and does nothing else."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", plain(text))
