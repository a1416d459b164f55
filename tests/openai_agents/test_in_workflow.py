"""What of an SDK agent runs in the workflow: pure functions, which make the same of the same on each replay."""

import importlib
import sys
from dataclasses import replace
from typing import Any

from agents import Agent, RunConfig, Runner, ToolsToFinalOutputResult, function_tool, handoff
from agents.handoffs import HandoffInputData
from agents.run import CallModelData, ModelInputData

from interlock import Interlock
from tests.conftest import Running
from tests.openai_agents.scripts import Script, agent, call
from tests.openai_agents.test_agents import replays

HEAVY = ["openai", "mcp", "fastmcp", "tiktoken", "requests", "cryptography.fernet", "opentelemetry.sdk.trace"]


@function_tool
def look(order: str) -> str:
    return f"saw {order}"


def last_only(data: HandoffInputData) -> HandoffInputData:
    return replace(data, input_history="only this", pre_handoff_items=(), new_items=())


def shortened(data: CallModelData[Any]) -> ModelInputData:
    return ModelInputData(input=data.model_data.input[-3:], instructions=f"{data.agent.name}, be brief")


def until_a_result(ctx: Any, results: list[Any]) -> ToolsToFinalOutputResult:
    return ToolsToFinalOutputResult(
        is_final_output=len(results) == 2, final_output=str([one.output for one in results])
    )


async def first_line(result: Any) -> str:
    return f"inner said {result.final_output}"


def made() -> tuple[list[Script], Agent[Any], RunConfig]:
    inner, last = Script("hello"), Script([call("look", "b", order="A-1"), call("look", "c", order="A-2")])
    first = Script([call("ask_inner", "i", input="x")], [call("transfer_to_last", "h")])
    billing = agent(last, name="last", tools=[look], tool_use_behavior=until_a_result)
    asks = agent(inner, name="inner").as_tool("ask_inner", "", custom_output_extractor=first_line)
    front = agent(first, tools=[asks], handoffs=[handoff(billing, input_filter=last_only)])
    return [first, inner, last], front, RunConfig(call_model_input_filter=shortened, tracing_disabled=True)


async def test_filters_extractors_and_ways_to_end_do_what_they_do_outside(run_app: Running) -> None:
    outside, one, config = made()
    expected = (await Runner.run(one, "go", run_config=config)).final_output
    inside, other, config = made()
    build = Interlock([other], run_config=config)
    async with run_app(build) as app:
        run = await app.client.start("support", "go")
        output = (await run.result()).output
        await replays(app, build, run)

    assert output == expected == str(["saw A-1", "saw A-2"])
    assert [script.asked for script in inside] == [script.asked for script in outside]
    assert [script.instructions for script in inside] == [script.instructions for script in outside]
    assert inside[0].results()["i"] == "inner said hello"
    assert inside[2].asked == [[{"role": "user", "content": "only this"}]]


async def test_packages_may_be_imported_where_they_are_used(run_app: Running) -> None:
    loaded: dict[str, set[int]] = {name: set() for name in HEAVY}

    def load() -> None:
        for name in HEAVY:
            loaded[name].add(id(importlib.import_module(name)))

    @function_tool
    def work() -> str:
        load()
        return "worked"

    def ends(ctx: Any, results: list[Any]) -> ToolsToFinalOutputResult:
        load()
        return ToolsToFinalOutputResult(is_final_output=True, final_output="done")

    one = agent(Script([call("work", "a")]), tools=[work], tool_use_behavior=ends)
    async with run_app(Interlock([one])) as app:
        assert (await (await app.client.start("support", "go")).result()).output == "done"

    assert loaded == {name: {id(sys.modules[name])} for name in HEAVY}
