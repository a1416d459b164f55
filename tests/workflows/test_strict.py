"""What runs outside of a run, and what tools may do inside of one without being told to."""

import asyncio
import socket
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import UserError

from interlock import Interlock
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call


def strict(script: Script, **options: Any) -> Agent[Any, Any]:
    return agent(script, durable={"strict": True}, **options)


async def iterated(one: Agent[Any, Any]) -> None:
    async with one.iter("go") as run:
        async for _ in run:
            pass


async def test_a_strict_agent_is_not_run_without_a_record() -> None:
    script = Script("done")
    careful = strict(script)
    with pytest.raises(UserError, match=r"'support' is strict .* `interlock runs start support`"):
        await careful.run("go")
    with pytest.raises(UserError, match="is strict"):
        await iterated(careful)

    assert script.calls == 0


async def test_an_agent_that_is_not_strict_behaves_as_without_interlock() -> None:
    assert (await agent(Script("done")).run("go")).output == "done"


async def test_a_strict_agent_runs_in_a_run_and_in_another_agents_tool(run_app: Running) -> None:
    inner = strict(Script("from within"), name="inner")

    async def delegate() -> Any:
        return (await inner.run("go")).output

    outer = strict(Script([call("delegate", "a")], "done"), tools=[delegate])
    async with run_app(Interlock([outer, inner])) as app:
        assert (await (await app.client.start("support", "go")).result()).output == "done"


async def test_a_tool_opens_a_socket_without_any_wiring(run_app: Running) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()
        await writer.wait_closed()

    async def asks(port: int) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"async\n")
        answer = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return answer.decode().strip()

    def asks_in_a_thread(port: int) -> str:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"sync\n")
            with connection.makefile() as lines:
                return lines.readline().strip()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        script = Script([call("asks", "a", port=port), call("asks_in_a_thread", "b", port=port)], "done")
        async with run_app(Interlock([agent(script, tools=[asks, asks_in_a_thread])])) as app:
            await (await app.client.start("support", "go")).result()

    assert script.results() == {"a": "async", "b": "sync"}
