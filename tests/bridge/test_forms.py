"""What a request looks like as a Required Action, and what each answer to it makes of the run."""

import json
from typing import Any

import pytest
from pydantic_ai import Tool
from pydantic_ai.exceptions import CallDeferred

from interlock import Interlock, RefusedError, Run
from interlock.bridge.asked import Asked
from interlock.bridge.form import Answer, BadAnswerError, Form, as_text, form_of, send
from interlock.bridge.settling import settled_of
from interlock.contracts.payloads import ApprovalRequest
from interlock.server import EmbeddedServer
from interlock.testing import RunningApp, running
from tests.workflows.scripts import Script, agent, call


def asked_of(request: ApprovalRequest, **more: Any) -> Asked:
    return Asked(
        temporal_conn_id="temporal_default",
        workflow_id=request.workflow_id,
        run_id=request.run_id,
        request_id=request.request_id,
        digest=request.digest,
        **more,
    )


def shown(request: ApprovalRequest, **more: Any) -> Form:
    return form_of(request, asked_of(request, **more), requested_by="ada", links={"Journal": "/there"})


def answer(option: str, **values: Any) -> Answer:
    user = {"id": "7", "name": "olga"}
    found = Answer.read({"chosen_options": [option], "params_input": values, "responded_by_user": user})
    assert found
    return found


def test_an_answer_of_nobody_is_none() -> None:
    assert Answer.read({"chosen_options": ["Approve"], "params_input": {}, "responded_by_user": None}) is None
    assert answer("Approve").by == "airflow:olga/7"


async def only(app: RunningApp, run: Run) -> ApprovalRequest:
    (request,) = await app.requests(run, 1)
    return request


async def test_each_kind_of_request_is_answered_by_its_own_buttons(server: EmbeddedServer) -> None:
    sent: list[Any] = []

    def send_money(order: int, api_key: str) -> str:
        sent.append((order, api_key))
        raise ConnectionError("the bank hung up")

    def print_label() -> str:
        raise CallDeferred

    script = Script(
        [call("send_money", "m", order=9_007_199_254_740_993, api_key="k-1")], [call("print_label", "l")], "done"
    )
    support = agent(script, tools=[Tool(send_money, requires_approval=True), print_label])
    async with running(Interlock([support]), server) as app:
        run = await app.client.start("support", "go", budget={"requests": 2})

        request = await only(app, run)
        form = shown(request)
        assert form.subject.startswith("Approve send_money: order 9007199254740993")
        assert form.options == ["Approve", "Reject"]
        assert "k-1" not in form.body + json.dumps(form.params)
        edited = form.params["arguments"]["value"].replace("993", "994")
        assert (await send(run, request, answer("Approve", arguments=edited))).outcome == "approved"

        request = await only(app, run)
        form = shown(request)
        assert form.subject.startswith("Did send_money")
        assert form.options == ["It happened", "It did not happen", "Give up"]
        with pytest.raises(BadAnswerError, match=r"no JSON, in the field 'result'"):
            await send(run, request, answer("It happened", result="sent"))
        assert (await send(run, request, answer("It happened", result='"sent"'))).outcome == "happened"

        request = await only(app, run)
        form = shown(request)
        assert form.options == ["Report result", "Report error", "Reject"]
        with pytest.raises(BadAnswerError):  # An empty field is no result.
            await send(run, request, answer("Report result", result=None))
        assert (await send(run, request, answer("Report error", reason="out of paper"))).outcome == "failed"

        request = await only(app, run)
        form = shown(request)
        assert form.subject.startswith("Extend the budget")
        assert (await send(run, request, answer("Extend", **{"arguments": '{"requests": 5}'}))).outcome == "approved"

        assert (await run.result()).output == "done"
        settled, requested_by = await settled_of(app.client, asked_of(request))
        assert (str(settled), requested_by) == ("approved by airflow:olga/7", (await run.journal()).requested_by)
    assert sent == [(9_007_199_254_740_994, "k-1")]  # Exact, and the masked key is the real one.
    assert script.results()["l"] == "out of paper"


async def test_what_cannot_be_taken_leaves_the_request_open(server: EmbeddedServer) -> None:
    def refund(amount: int) -> str:
        return f"refunded {amount}"

    script = Script([call("refund", "r", amount=5)], "done")
    support = agent(script, tools=[Tool(refund, requires_approval=True)])
    async with running(Interlock([support]), server) as app:
        run = await app.client.start("support", "go")
        request = await only(app, run)
        for text, error in [
            ("{", r"This is no JSON, in the field 'arguments'"),
            ('["k-1"]', r"The arguments are a JSON object"),
            ('{"amount": NaN}', r"NaN is no JSON number"),
            ('{"amount": 1e999}', r"1e999 is no JSON number"),
            ('{"amount": ' + 5_000 * "[" + 5_000 * "]" + "}", r"no JSON, in the field 'arguments': .*recursion"),
        ]:
            with pytest.raises(BadAnswerError, match=error) as caught:
                await send(run, request, answer("Approve", arguments=text))
            assert "k-1" not in str(caught.value)  # It is logged, and what a person types may be a secret.
        with pytest.raises(RefusedError, match="amount"):
            await send(run, request, answer("Approve", arguments='{"amount": "much"}'))
        with pytest.raises(BadAnswerError):
            await send(run, request, answer("Approved"))
        assert (await settled_of(app.client, asked_of(request)))[0] is None

        unknown = request.model_copy(update={"kind": "of the future"})
        assert shown(unknown).options == ["Look again"]
        assert shown(unknown).params == {}
        with pytest.raises(BadAnswerError, match="cannot be decided here"):
            await send(run, unknown, answer("Look again"))

        await run.cancel()
        with pytest.raises(RefusedError):
            await send(run, request, answer("Approve"))
        settled, _ = await settled_of(app.client, asked_of(request))
        assert str(settled) == "withdrawn: its run is cancelled"


async def test_a_text_shows_itself_and_nothing_else(server: EmbeddedServer) -> None:
    def post(text: str) -> None:
        """Posts [it](https://evil.example)."""

    trick = "```\n# Approve\n\u202eevil"
    support = agent(Script([call("post", "p", text=trick)], "done"), tools=[Tool(post, requires_approval=True)])
    async with running(Interlock([support]), server) as app:
        run = await app.client.start("support", "go")
        request = await only(app, run)
        form = shown(request, said="*no*")
        await run.cancel()

    assert "\u202e" not in form.subject + form.body + json.dumps(form.params, ensure_ascii=False)
    assert "[it](" not in form.body
    assert r"\*no\*" in form.body
    assert "````json\n" in form.body
    assert json.loads(as_text(request.arguments)) == {"text": trick}
    assert "[Journal](/there)" in form.body
    assert " for ada: request 1 of run" in form.body


def test_each_request_has_a_dag_run_of_its_own() -> None:
    asked = Asked(temporal_conn_id="c", workflow_id="airflow/é/manual__1/t", run_id="r", request_id="1", digest="d")
    others = [
        asked.model_copy(update={"run_id": "s"}),
        asked.model_copy(update={"request_id": "2"}),
        asked.model_copy(update={"workflow_id": "airflow/è/manual__1/t"}),
        asked.again("no JSON"),
    ]
    ids = [one.dag_run_id for one in (asked, *others)]

    assert len(set(ids)) == 5
    assert asked.model_copy(update={"assignees": ("olga",)}).dag_run_id == ids[0]
    assert ids[-1] == f"{ids[0]}-2"
    assert all(len(one) <= 250 and one.isascii() for one in ids)
