"""The demo: a support agent, a database of orders, and refunds that wait for you."""

import asyncio
from enum import StrEnum
from typing import Annotated

import typer

from interlock.cli._options import AsJson


class Adapter(StrEnum):
    """The frameworks that the demo's agent is there in."""

    PYDANTIC_AI = "pydantic-ai"
    OPENAI_AGENTS = "openai-agents"


def demo(
    yes: Annotated[bool, typer.Option("--yes", help="Approve everything; needs no terminal.")] = False,
    kill: Annotated[
        bool, typer.Option("--kill", help="Kill the worker in the middle, and show that nothing is lost.")
    ] = False,
    adapter: Annotated[
        Adapter, typer.Option(help="The framework that the agent is written with.")
    ] = Adapter.PYDANTIC_AI,
    as_json: AsJson = False,
) -> int:
    """Show it all: refunds that wait for you.

    A support agent works on a ticket, and asks before it refunds anything.

    \b
    Examples:
      interlock demo
      interlock demo --yes --kill
      interlock demo --adapter openai-agents
    """
    from interlock.demo.runner import run_demo

    return asyncio.run(run_demo(yes=yes, kill=kill, as_json=as_json, adapter=adapter.value))
