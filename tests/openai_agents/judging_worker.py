"""A worker whose guardrail asks its judge six times. It dies in the sixth call, unless another has died before it.

Arguments: the server's address, the task queue, and a file with a line for each call of the judge's model.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from agents import GuardrailFunctionOutput, Runner, input_guardrail

from interlock import Client, Interlock
from interlock.worker import run_worker
from tests.openai_agents.scripts import Script, agent

CALLS = 6
address, task_queue, calls = sys.argv[1], sys.argv[2], Path(sys.argv[3])


def answer(_: Any) -> str:
    with calls.open("a") as file:
        file.write("asked\n")
    if len(calls.read_text().splitlines()) == CALLS:
        os.kill(os.getpid(), signal.SIGKILL)
    return "no"


judge = agent(Script(answer), name="judge")


@input_guardrail(run_in_parallel=False)
async def careful(ctx: Any, _: Any, given: Any) -> GuardrailFunctionOutput:
    for _ in range(CALLS):
        await Runner.run(judge, "is it?")
    return GuardrailFunctionOutput(None, tripwire_triggered=False)


async def main() -> None:
    client = await Client.connect(address, task_queue=task_queue)
    await run_worker(Interlock([agent(Script("done"), input_guardrails=[careful])]), client, asyncio.Event())


asyncio.run(main())
