"""The same agent on pydantic-ai's own Temporal integration, written as its documentation has it."""

from pydantic_ai.durable_exec.temporal import TemporalDurability
from pydantic_ai.usage import UsageLimits
from temporalio import workflow

from bench.agents import make_agent

agent = make_agent(TemporalDurability())


@workflow.defn
class PlainWorkflow:
    """An agent with `TemporalDurability`, and nothing around it."""

    __pydantic_ai_agents__ = (agent,)

    @workflow.run
    async def run(self, prompt: str) -> str:
        result = await agent.run(prompt, usage_limits=UsageLimits(request_limit=None))
        return result.output
