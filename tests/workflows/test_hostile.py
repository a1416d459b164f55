"""What users, models and strangers do to a run that nobody meant them to."""

import asyncio
from datetime import timedelta
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, BeforeValidator, Field, SecretStr
from pydantic_ai import RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ApprovalRequired
from temporalio.api.common.v1 import Payload
from temporalio.client import Client as TemporalClient
from temporalio.common import RetryPolicy
from temporalio.converter import CompositePayloadConverter, DataConverter, DefaultPayloadConverter
from temporalio.service import RPCError

from interlock import Interlock, MisconfiguredError, Run, RunFailedError
from interlock.contracts.payloads import RunInput, SubRun, Usage
from interlock.testing import RunningApp, eventually
from tests.conformance.conftest import failed_tasks as whys
from tests.conformance.frameworks import FRAMEWORKS, Framework, app_of
from tests.conformance.frameworks import Script as Turns
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call


def refund(order: str) -> str:
    return f"refunded {order}"


REFUND = [call("refund", "a", order="A-1")]


async def failed_tasks(app: RunningApp, run: Run) -> int:
    """How often a workflow task of the run has failed."""
    return len(whys(await app.client.temporal.get_workflow_handle(run.id).fetch_history()))


SHAPES: list[list[Any]] = [[], [1, 2], [None], ["text"], [{"request_id": "1"}], [[]]]


async def test_signals_and_updates_of_any_shape_do_no_harm(run_app: Running) -> None:
    script = Script(REFUND, "done")
    async with run_app(Interlock([agent(script, tools=[Tool(refund, requires_approval=True)])])) as app:
        run = await app.client.start("support", "go")
        (request,) = await app.requests(run, 1)
        handle = app.client.temporal.get_workflow_handle(run.id)
        for args in SHAPES:
            for signal in ("decide_approval", "complete_tool_call", "report_sub_run"):
                await handle.signal(signal, args=args)
            for update in ("submit_decision", "submit_tool_result"):
                with pytest.raises(Exception, match=r"update failed|Workflow update|argument"):
                    await handle.execute_update(update, args=args)
        assert await run.approvals() == [request]
        await run.decide("1", "approve")
        await run.result()

        assert script.results() == {"a": "refunded A-1"}
        assert await failed_tasks(app, run) == 0


class Ali(BaseModel):
    amount: float = Field(1, serialization_alias="Amount")


UNSTABLE: dict[str, tuple[Any, Any]] = {
    "alias in one direction": (Ali, {"amount": 500}),
    "validator that changes its result": (Annotated[int, BeforeValidator(lambda value: int(value) * 2)], 4),
    "secret": (SecretStr, "hunter2"),
}


@pytest.mark.parametrize("kind", UNSTABLE)
async def test_arguments_that_would_not_run_as_shown_ask_nobody(run_app: Running, kind: str) -> None:
    annotation, given = UNSTABLE[kind]
    ran: list[Any] = []

    def take(first: str, value: Any) -> None:
        ran.append(value)

    take.__annotations__ = {"first": str, "value": annotation}
    script = Script([call("take", "a", first="x", value=given)], "done")
    async with run_app(Interlock([agent(script, tools=[Tool(take, requires_approval=True)])])) as app:
        run = await app.client.start("support", "go")
        with pytest.raises(RunFailedError, match="'take' cannot be gated with these arguments"):
            await run.result()

        assert ran == []


async def test_numbers_that_are_not_finite_are_given_back_to_the_model(run_app: Running) -> None:
    def take(value: float) -> float:
        return value

    script = Script([call("take", "a", value=float("inf"))], [call("take", "b", value=2.5)], "done")
    async with run_app(Interlock([agent(script, tools=[Tool(take, requires_approval=True)])])) as app:
        run = await app.client.start("support", "go")
        (request,) = await app.requests(run, 1)
        await run.decide(request.request_id, "approve")
        await run.result()

        assert script.outcomes() == {"a": "retried", "b": "success"}


class Breaks(AbstractCapability[Any]):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        raise self.error


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("not even this")


class Base(BaseException):
    pass


@pytest.mark.parametrize("error", [MuteError(), Base("odd"), LookupError("plain"), Exception()], ids=repr)
async def test_whatever_a_hook_raises_ends_the_run_with_its_type(run_app: Running, error: BaseException) -> None:
    async with run_app(Interlock([agent(Script("done"), capabilities=[Breaks(error)])])) as app:
        run = await app.client.start("support", "go")
        with pytest.raises(RunFailedError) as failed:
            await run.result()
        assert failed.value.error_type == type(error).__name__
        assert await failed_tasks(app, run) == 0


@pytest.mark.parametrize("error", [MuteError(), Base("odd"), KeyboardInterrupt(), LookupError("plain")], ids=repr)
async def test_whatever_an_approved_tool_raises_is_asked_about_with_its_type(
    run_app: Running, error: BaseException
) -> None:
    ran: list[int] = []

    async def take() -> None:
        ran.append(1)
        raise error

    async with run_app(
        Interlock([agent(Script([call("take", "a")], "done"), tools=[Tool(take, requires_approval=True)])])
    ) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await run.decide("1", "approve")
        state = await app.state(run, lambda state: [one.kind for one in state.requests] == ["outcome"])
        assert f"it ended with {type(error).__name__}" in state.requests[0].question
        await run.decide("2", "happened")
        await run.result()
        assert ran == [1]
        assert await failed_tasks(app, run) == 0


async def test_a_result_that_is_no_json_is_lost_once_and_not_made_again(run_app: Running) -> None:
    ran: list[int] = []

    def mail() -> Any:
        ran.append(1)
        return object()

    async with run_app(Interlock([agent(Script([call("mail", "a")], "done"), tools=[mail])])) as app:
        run = await app.client.start("support", "go")
        with pytest.raises(RunFailedError, match="'mail' has run, but what it returned cannot be written as JSON"):
            await run.result()
        assert ran == [1]


class AsksByHook(AbstractCapability[Any]):
    async def before_tool_execute(self, ctx: RunContext[Any], *, call: Any, tool_def: Any, args: Any) -> Any:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return args


async def test_a_call_that_a_hook_asked_about_gets_one_attempt_too(run_app: Running) -> None:
    ran: list[str] = []

    def pay(order: str) -> str:
        ran.append(order)
        raise OSError("after the effect")

    script = Script([call("pay", "a", order="A-1")], "done")
    async with run_app(Interlock([agent(script, tools=[pay], capabilities=[AsksByHook()])])) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await run.decide("1", "approve")
        state = await app.state(run, lambda state: [one.kind for one in state.requests] == ["outcome"])
        await run.decide("2", "happened", result="paid")
        await run.result()
        assert "after the effect" in state.requests[0].question
        assert ran == ["A-1"]


async def test_a_run_that_fails_takes_the_runs_of_its_tools_along(run_app: Running) -> None:
    inner = agent(Script(REFUND, "x"), name="inner", tools=[Tool(refund, requires_approval=True)])
    ended = asyncio.Event()

    async def delegate() -> Any:
        return (await inner.run("go")).output

    async def breaks() -> None:
        await ended.wait()
        raise LookupError("beside it")

    gated = Tool(breaks, requires_approval=True)
    outer = agent(Script([call("delegate", "d"), call("breaks", "b")], "done"), tools=[delegate, gated])
    async with run_app(Interlock([outer, inner])) as app:
        run = await app.client.start("support", "go")
        (sub_run,) = (await app.state(run, lambda state: bool(state.sub_runs and state.requests))).sub_runs
        await app.requests(app.client.attach(sub_run.workflow_id), 1)
        await run.decide((await run.approvals())[0].request_id, "approve")
        ended.set()
        await app.state(run, lambda state: [one.kind for one in state.requests] == ["outcome"])
        await run.decide("2", "give_up")
        with pytest.raises(RunFailedError, match="beside it"):
            await run.result()

        async def over() -> bool:
            return (await app.client.attach(sub_run.workflow_id).report()).status == "cancelled"

        await eventually(over)


async def test_a_run_takes_along_a_run_whose_tool_nobody_waits_for_any_more(run_app: Running) -> None:
    inner = agent(Script(REFUND, "x"), name="inner", tools=[Tool(refund, requires_approval=True)])

    async def delegate() -> Any:
        return (await inner.run("go")).output

    # The server gives this attempt up, so nothing tells the tool that its run has ended.
    given_up = {"start_to_close_timeout": timedelta(seconds=2), "retry_policy": RetryPolicy(maximum_attempts=1)}
    outer = agent(Script([call("delegate", "d")], "done"), tools=[Tool(delegate, metadata={"temporal": given_up})])
    async with run_app(Interlock([outer, inner])) as app:
        run = await app.client.start("support", "go")
        (sub_run,) = (await app.state(run, lambda state: bool(state.sub_runs))).sub_runs
        with pytest.raises(RunFailedError):
            await run.result()

        async def over() -> bool:
            return (await app.client.attach(sub_run.workflow_id).report()).status == "cancelled"

        await eventually(over)


async def test_a_run_that_ends_leaves_runs_alone_that_are_not_its_own(run_app: Running) -> None:
    async with run_app(Interlock([agent(Script(REFUND, "done"), tools=[Tool(refund, requires_approval=True)])])) as app:
        victim, run = await app.client.start("support", "go"), await app.client.start("support", "go")
        await app.requests(victim, 1)
        await app.requests(run, 1)
        handle = app.client.temporal.get_workflow_handle(run.id)
        await handle.signal("report_sub_run", SubRun(workflow_id=victim.id, agent="support"))
        late = SubRun(workflow_id=f"{run.id}/of-an-earlier-execution", agent="support", usage=Usage(requests=9))
        await handle.signal("report_sub_run", late)
        assert (await app.state(run, lambda state: True)).sub_runs == []
        await run.cancel()
        with pytest.raises(RunFailedError):
            await run.result()
        await victim.decide("1", "approve")

        assert (await victim.result()).output == "done"


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"deps": object()}, "not plain JSON"),
        ({"model_settings": {"temperature": object()}}, "not plain JSON"),
        ({"message_history": [{"x": "y" * 1_100_000}]}, r"has 1,1.* bytes; at most 1,000,000"),
    ],
    ids=["deps", "settings", "size"],
)
async def test_input_that_cannot_travel_is_refused_at_the_start(run_app: Running, given: Any, what: str) -> None:
    async with run_app(Interlock([agent(Script("done"))])) as app:
        with pytest.raises(MisconfiguredError, match=what):
            await app.client.start("support", "go", id="never-" + app.client.task_queue, **given)
        with pytest.raises(RPCError, match="not found"):
            await app.client.temporal.get_workflow_handle("never-" + app.client.task_queue).describe()


async def test_an_answer_that_cannot_travel_is_refused_before_it_is_sent(run_app: Running) -> None:
    script = Script(REFUND, "done")
    async with run_app(Interlock([agent(script, tools=[Tool(refund, requires_approval=True)])])) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        with pytest.raises(MisconfiguredError, match="The answer cannot be sent: reason"):
            await run.decide("1", "reject", reason="x" * 2_001)
        with pytest.raises(MisconfiguredError, match="not plain JSON"):
            await run.decide("1", "approve", arguments={"order": object()})
        with pytest.raises(MisconfiguredError, match="bytes; at most"):
            await run.decide("1", "approve", arguments={"order": "x" * 2_000_000})
        await run.decide("1", "reject")
        await run.result()


async def test_an_argument_of_a_set_is_shown_and_runs_in_one_order(run_app: Running) -> None:
    got: list[set[str]] = []

    def take(names: set[str]) -> str:
        got.append(names)
        return "taken"

    script = Script([call("take", "a", names=["pear", "apple", "fig", "date"])], "done")
    async with run_app(Interlock([agent(script, tools=[Tool(take, requires_approval=True)])])) as app:
        run = await app.client.start("support", "go")
        (request,) = await app.requests(run, 1)
        assert request.arguments == {"names": ["apple", "date", "fig", "pear"]}
        await run.decide("1", "approve", digest=request.digest)
        await run.result()

        assert got == [{"pear", "apple", "fig", "date"}]


class Unreadable:
    """Goes out as bytes that are no JSON, whatever they say of themselves."""

    def __repr__(self) -> str:
        return "unreadable"


class SendsAnything(CompositePayloadConverter):
    def __init__(self) -> None:
        super().__init__(*DefaultPayloadConverter.default_encoding_payload_converters)

    def to_payloads(self, values: Any) -> list[Payload]:
        broken = Payload(metadata={"encoding": b"json/plain"}, data=b'{"agent": "\\ud800')
        return [
            broken if isinstance(value, Unreadable) else super(SendsAnything, self).to_payloads([value])[0]
            for value in values
        ]


ODD_INPUTS: list[tuple[list[Any], str]] = [
    ([], "takes one input, and none was given"),
    ([Unreadable()], "cannot be read: "),
    (
        [{"agent": "support", "prompt": "go", "parent": {"workflow_id": "x", "run_id": "zz", "agent_path": []}}],
        "parent",
    ),
    ([None], "cannot be read: value"),
    (["text"], "cannot be read: value"),
    ([{}], "agent: Field required; prompt: Field required"),
    ([{"agent": "support", "prompt": ""}], "prompt: Value error, must not be empty"),
    ([{"agent": ["x"], "prompt": 1}], "agent: "),
]


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
async def test_a_run_started_with_any_input_ends_and_says_what_is_wrong(run_app: Running, framework: Framework) -> None:
    async with run_app(app_of(framework.agent(Turns("done")))) as app:

        async def start(number: int, args: list[Any], what: str) -> None:
            config = app.client.temporal.config()
            config["data_converter"] = DataConverter(payload_converter_class=SendsAnything)
            queue = app.client.task_queue
            handle = await TemporalClient(**config).start_workflow(
                "AgentWorkflow", args=args, id=f"odd-{number}-{queue}", task_queue=queue
            )
            with pytest.raises(RunFailedError, match=what) as failed:
                await app.client.attach(handle.id).result()
            assert failed.value.error_type == "InvalidInputError"
            assert await failed_tasks(app, app.client.attach(handle.id)) == 0

        await asyncio.gather(*(start(number, *odd) for number, odd in enumerate(ODD_INPUTS)))


async def test_a_run_started_with_two_inputs_ends_and_says_so(run_app: Running) -> None:
    async with run_app(Interlock([agent(Script("done"))])) as app:
        one = RunInput(agent="support", prompt="go")
        handle = await app.client.temporal.start_workflow(
            "AgentWorkflow", args=[one, one], id=f"two-{app.client.task_queue}", task_queue=app.client.task_queue
        )
        run = app.client.attach(handle.id)
        with pytest.raises(RunFailedError, match="A run takes one input, and 2 were given") as failed:
            await asyncio.wait_for(run.result(), 60)
        assert failed.value.error_type == "InvalidInputError"
        assert await failed_tasks(app, run) == 0
