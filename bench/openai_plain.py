"""The same agent on Temporal's own integration of the SDK, written as its documentation has it."""

from datetime import timedelta
from typing import Any

from agents import RunConfig, Runner
from temporalio import activity, workflow
from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
from temporalio.openai_agents.workflow import activity_as_tool

from bench.openai_agent import Models, make_agent
from bench.openai_agent import lookup as _lookup

LIMIT = timedelta(seconds=60)


@activity.defn
async def lookup(key: str) -> str:
    """Look an item up."""
    return await _lookup(key)


@workflow.defn
class PlainOpenAIWorkflow:
    """An agent whose tool is an activity, and nothing around it."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        agent = make_agent(activity_as_tool(lookup, start_to_close_timeout=LIMIT))
        # Interlock's worker sends no traces either, unless it is told to.
        result = await Runner.run(agent, prompt, max_turns=None, run_config=RunConfig(tracing_disabled=True))
        return str(result.final_output)


def plugin() -> OpenAIAgentsPlugin:
    return OpenAIAgentsPlugin(ModelActivityParameters(start_to_close_timeout=LIMIT), Models())


def parts() -> dict[str, Any]:
    """What a worker is made of."""
    return {"workflows": [PlainOpenAIWorkflow], "activities": [lookup]}
