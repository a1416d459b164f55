"""What models are told is a conversation that providers take, whatever calls it mixes and however they end."""

import asyncio
import uuid
from collections import defaultdict
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic_ai import Agent, Tool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import CallDeferred, ModelRetry, SkipToolExecution, ToolFailed
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    ModelResponsePart,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from temporalio.common import RetryPolicy

from interlock import Interlock, Retries, Run
from interlock.adapters.pydantic_ai import Durable
from interlock.testing import RunningApp
from tests.conftest import Running
from tests.seeds import for_examples

AT_ONCE = ["plain", "retry", "failed", "skipped", "unknown", "invalid", "no JSON"]
ANSWERED = ["approve", "reject", "edit", "lost", "result", "error", "turned down"]
KINDS = [*AT_ONCE, *ANSWERED]
STRATEGIES: list[Literal["early", "graceful", "exhaustive"]] = ["early", "graceful", "exhaustive"]


def check(messages: list[ModelMessage], *, asked: bool) -> None:
    """Hold a conversation against the rules of providers. asked: whether the model is to speak now."""
    ids = [part.tool_call_id for message in messages for part in message.parts if isinstance(part, ToolCallPart)]
    assert len(set(ids)) == len(ids), "two calls have one id"
    assert all(ids), "a call has no id"
    said = turns_of(messages)
    assert said[0][0] == "request"
    assert said[-1][0] == "request" or not asked
    open_calls: list[str] = []
    for kind, parts in said:
        assert parts, "a message is empty"
        assert all(part.content for part in parts if isinstance(part, TextPart | UserPromptPart)), "a text is empty"
        if kind == "request":
            assert sorted(answers(parts)) == sorted(open_calls)
        open_calls = [part.tool_call_id for part in parts if isinstance(part, ToolCallPart)]
    assert open_calls == [], "calls are left open"


def turns_of(messages: list[ModelMessage]) -> list[tuple[str, list[Any]]]:
    """Who says what. What is said in one voice in several messages reaches a provider as one."""
    said: list[tuple[str, list[Any]]] = []
    for message in messages:
        if said and said[-1][0] == message.kind:
            said[-1][1].extend(message.parts)
        else:
            said.append((message.kind, list(message.parts)))
    return said


def answers(parts: list[Any]) -> list[str]:
    """The ids of the calls that are answered."""
    return [
        part.tool_call_id
        for part in parts
        if isinstance(part, ToolReturnPart) or (isinstance(part, RetryPromptPart) and part.tool_name)
    ]


class Plan(BaseModel):
    """What the model does: which calls in each turn, and how it ends. ids: how it names its calls."""

    key: str
    turns: list[list[str]]
    ids: Literal["own", "same", "none"] = "own"

    def parts(self, turn: int) -> list[ModelResponsePart]:
        if turn == len(self.turns):
            return [TextPart("done")]
        calls = [call(kind, turn * 100 + n) for n, kind in enumerate(self.turns[turn])]
        for part in calls:
            part.tool_call_id = {"own": f"call {uuid.uuid4().hex}", "same": "same", "none": ""}[self.ids]
        return list(calls)


def call(kind: str, n: int) -> ToolCallPart:
    if kind == "output":
        return ToolCallPart("final_result", {"text": f"result {n}"})
    if kind == "no JSON":
        return ToolCallPart("act", '{"how": "plain", "n')
    if kind == "invalid":
        return ToolCallPart("act", {"how": "plain", "n": "many"})
    tools = {"unknown": "nothing", "result": "render", "error": "render", "turned down": "render"}
    gated = kind in ("approve", "reject", "edit", "lost")
    return ToolCallPart("pay" if gated else tools.get(kind, "act"), {"how": kind, "n": n})


class Answer(BaseModel):
    text: str


class Skips(AbstractCapability[Any]):
    async def before_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
        if args.get("how") == "skipped":
            raise SkipToolExecution("skipped")
        return args


class Talks:
    """Agents that do what the plan in their prompt says. asked: what their model was told, by plan. held: what keeps
    plain calls from ending, by their number."""

    def __init__(self) -> None:
        self.asked: dict[str, list[list[ModelMessage]]] = defaultdict(list)
        self.held: dict[int, asyncio.Event] = defaultdict(asyncio.Event)

    def app(self) -> Interlock:
        once = Retries(tool=RetryPolicy(maximum_attempts=1))
        return Interlock([self._agent(strategy) for strategy in STRATEGIES], retries=once)

    def _agent(self, strategy: Literal["early", "graceful", "exhaustive"]) -> Agent[Any, Any]:
        return Agent(
            FunctionModel(self._answer, model_name="talker"),
            name=strategy,
            output_type=[str, Answer],
            tools=[self.act, self.render, Tool(self.pay, requires_approval=True)],
            capabilities=[Skips(), Durable()],
            end_strategy=strategy,
            retries=9,
        )

    async def act(self, how: str, n: int) -> str:
        if how == "retry":
            raise ModelRetry("again")
        if how == "failed":
            raise ToolFailed("broken")
        await asyncio.wait_for(self.held[n].wait(), 60)
        return f"plain {n}"

    def pay(self, how: str, n: int) -> str:
        if how == "lost":
            raise ConnectionError("unplugged")
        return f"paid {n}"

    def render(self, how: str, n: int) -> str:
        raise CallDeferred

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        at, plan = last_plan(messages)
        self.asked[plan.key].append(list(messages))
        return ModelResponse(parts=plan.parts(sum(isinstance(one, ModelResponse) for one in messages[at:])))


def last_plan(messages: list[ModelMessage]) -> tuple[int, Plan]:
    """The plan that the model follows, and the place of its message."""
    texts = [
        (at, part.content)
        for at, message in enumerate(messages)
        for part in message.parts
        if isinstance(part, UserPromptPart) and isinstance(part.content, str) and part.content.startswith('{"key"')
    ]
    at, text = texts[-1]
    return at, Plan.model_validate_json(text)


@dataclass
class Talk:
    """One run that follows a plan; its calls end in an order of chance."""

    app: RunningApp
    talks: Talks
    random: Random

    async def run(self, agent: str, plan: Plan, history: list[Any] | None = None) -> list[Any]:
        """Run the plan to its end and return the messages, which were checked."""
        self.talks.held.clear()
        run = await self.app.client.start(agent, plan.model_dump_json(), message_history=history)
        for turn, kinds in enumerate(plan.turns):
            for calls in run_together(agent, {turn * 100 + n: kind for n, kind in enumerate(kinds)}):
                await self._end_calls(run, calls)
        messages = (await run.result()).messages
        assert messages
        for asked in self.talks.asked[plan.key]:
            check(asked, asked=True)
        check(ModelMessagesTypeAdapter.validate_python(messages), asked=False)
        return messages

    async def _end_calls(self, run: Run, kinds: dict[int, str]) -> None:
        waiting = [n for n, kind in kinds.items() if kind in ANSWERED]
        open_requests = await self.app.requests(run, len(waiting)) if waiting else []
        by_number = {request.arguments["n"]: request.request_id for request in open_requests}
        ends = [*waiting, *(n for n, kind in kinds.items() if kind == "plain")]
        self.random.shuffle(ends)
        for n in ends:
            if n in by_number:
                await answer(run, kinds[n], by_number[n])
            else:
                self.talks.held[n].set()
        lost = sum(kind == "lost" for kind in kinds.values())
        if lost:
            for request in await self.app.requests(run, lost):
                await run.decide(request.request_id, "happened", result="it did")


def run_together(strategy: str, kinds: dict[int, str]) -> list[dict[int, str]]:
    """The calls of one turn, in the parts that the framework runs one after the other when an output is among them."""
    if "output" not in kinds.values() or strategy == "exhaustive":
        return [kinds]
    if strategy == "early":
        return []
    parts: list[dict[int, str]] = [{}]
    for n, kind in kinds.items():
        if kind == "output":
            parts.append({})
        else:
            parts[-1][n] = kind
    return parts


async def answer(run: Run, kind: str, request_id: str) -> None:
    match kind:
        case "result":
            await run.complete_tool_call(request_id, result={"done": True})
        case "error":
            await run.complete_tool_call(request_id, error="no")
        case "reject" | "turned down":
            await run.decide(request_id, "reject", reason="not this one")
        case "edit":
            await run.decide(request_id, "approve", arguments={"how": "edit", "n": 7})
        case _:
            await run.decide(request_id, "approve")


turns = st.lists(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6), min_size=1, max_size=2)
last_turns = st.lists(st.sampled_from(KINDS), max_size=4).flatmap(
    lambda kinds: st.lists(st.just("output"), max_size=2).flatmap(lambda more: st.permutations([*kinds, *more]))
)


async def test_a_conversation_is_one_that_providers_take(run_app: Running) -> None:
    talks = Talks()
    async with run_app(talks.app()) as app:

        async def talk(agent: str, first: list[list[str]], last: list[str], ids: Any, seed: int) -> None:
            talking = Talk(app, talks, Random(seed))
            ended = [*first, last] if last else first
            messages = await talking.run(agent, Plan(key=uuid.uuid4().hex, turns=ended, ids=ids))
            await talking.run(agent, Plan(key=uuid.uuid4().hex, turns=[["plain", "approve"]], ids=ids), messages)

        await for_examples(
            talk,
            st.sampled_from(STRATEGIES),
            turns,
            last_turns,
            st.sampled_from(["own", "same", "none"]),
            st.integers(0, 1_000),
            count=3,
        )
