"""One worker process: `python -m bench.child KIND ADDRESS QUEUE`. It ends when its standard input does."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_ai.durable_exec.temporal import PydanticAIPlugin
from temporalio.client import Client as TemporalClient
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from bench.agents import make_agent


async def _interlock(address: str, queue: str) -> None:
    from interlock import Client, Interlock
    from interlock.adapters.pydantic_ai import Durable
    from interlock.worker import run_worker

    client = await Client.connect(address, task_queue=queue)
    await run_worker(Interlock([make_agent(Durable())]), client, asyncio.Event())


async def _plain(address: str, queue: str) -> None:
    from bench.plain import PlainWorkflow

    client = await TemporalClient.connect(address, plugins=[PydanticAIPlugin()])
    await Worker(client, task_queue=queue, workflows=[PlainWorkflow]).run()


async def _plain_unsandboxed(address: str, queue: str) -> None:
    from bench.plain import PlainWorkflow

    client = await TemporalClient.connect(address, plugins=[PydanticAIPlugin()])
    runner = UnsandboxedWorkflowRunner()
    await Worker(client, task_queue=queue, workflows=[PlainWorkflow], workflow_runner=runner).run()


def openai_app() -> Any:
    """Interlock's app of the agent of the OpenAI Agents SDK."""
    from agents import RunConfig, function_tool

    from bench.openai_agent import Models, lookup, make_agent
    from interlock import Interlock

    return Interlock([make_agent(function_tool(lookup))], run_config=RunConfig(model_provider=Models()))


async def _interlock_openai(address: str, queue: str) -> None:
    from interlock import Client
    from interlock.worker import run_worker

    client = await Client.connect(address, task_queue=queue)
    await run_worker(openai_app(), client, asyncio.Event())


async def _openai(address: str, queue: str) -> None:
    from bench.openai_plain import parts, plugin

    client = await TemporalClient.connect(address, plugins=[plugin()])
    await Worker(client, task_queue=queue, **parts()).run()


async def _openai_unsandboxed(address: str, queue: str) -> None:
    from bench.openai_plain import parts, plugin

    client = await TemporalClient.connect(address, plugins=[plugin()])
    await Worker(client, task_queue=queue, workflow_runner=UnsandboxedWorkflowRunner(), **parts()).run()


async def _bare(address: str, queue: str) -> None:
    from bench.bare import BareWorkflow, bare

    client = await TemporalClient.connect(address)
    await Worker(client, task_queue=queue, workflows=[BareWorkflow], activities=[bare]).run()


KINDS: dict[str, Callable[[str, str], Awaitable[None]]] = {
    "interlock": _interlock,
    "plain": _plain,
    "plain-unsandboxed": _plain_unsandboxed,
    "bare": _bare,
    "interlock-openai": _interlock_openai,
    "openai": _openai,
    "openai-unsandboxed": _openai_unsandboxed,
}


async def _main(kind: str, address: str, queue: str) -> None:
    worker = asyncio.ensure_future(KINDS[kind](address, queue))
    parent = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    done, _ = await asyncio.wait([worker, parent], return_when=asyncio.FIRST_COMPLETED)
    if worker in done:
        worker.result()  # A worker ends only by its error.


if __name__ == "__main__":
    code = 1
    try:
        asyncio.run(asyncio.wait_for(_main(*sys.argv[1:]), 600))
        code = 0
    finally:
        sys.stdout.flush()
        os._exit(code)
