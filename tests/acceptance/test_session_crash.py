"""Workers and servers that are killed while a conversation goes on: each turn is had once, and none is lost."""

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

from interlock import Client
from interlock.server import EmbeddedServer
from tests.seeds import chosen_seed

REPOSITORY = Path(__file__).parents[2]
TURNS = 5


async def worker(server: EmbeddedServer) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.acceptance.session_worker", server.address, "talk", cwd=REPOSITORY
    )


async def killed(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


def said(messages: list[Any], kind: str) -> list[str]:
    return [part["content"] for message in messages for part in message["parts"] if part["part_kind"] == kind]


async def test_killed_workers_and_a_killed_server_lose_and_double_no_turn(tmp_path: Path) -> None:
    chance = random.Random(chosen_seed())
    server = await EmbeddedServer.start(port=0, ui=False, data=tmp_path / "data")
    at_work = await worker(server)
    client = await Client.connect(server.address, task_queue="talk")
    ids = [(await client.start("support", f"prompt {n}", session="talk", id=f"turn-{n}")).id for n in range(TURNS)]
    results = asyncio.gather(*(client.attach(one).result() for one in ids), return_exceptions=True)
    for number in range(4):
        await asyncio.sleep(chance.uniform(1.5, 3))  # A worker takes a second to be there.
        if number == 2:
            port = int(server.address.rpartition(":")[2])
            server.process.kill()
            await server.process.wait()
            server = await EmbeddedServer.start(port=port, ui=False, data=tmp_path / "data")
        await killed(at_work)
        at_work = await worker(server)
    await results
    client = await Client.connect(server.address, task_queue="talk")
    outputs = [await client.attach(one).result() for one in ids]
    state, messages = await client.session("talk"), await client.conversation("talk")
    await killed(at_work)
    await server.stop()

    assert sorted(output.turn or 0 for output in outputs) == list(range(1, TURNS + 1))
    assert sorted(said(messages, "user-prompt")) == [f"prompt {n}" for n in range(TURNS)]
    assert said(messages, "text") == [str(n) for n in range(1, TURNS + 1)]
    assert [turn.number for turn in state.closed] == list(range(1, TURNS + 1))
    assert state.open == ()
