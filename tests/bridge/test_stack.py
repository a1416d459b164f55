"""The ground that the other tests of the bridge stand on."""

import asyncio
import sys
from pathlib import Path
from signal import SIGKILL

import httpx
import pytest

from interlock import Client
from interlock.testing import eventually
from tests.bridge.agents import script
from tests.bridge.airflow_api import AirflowAPI
from tests.bridge.keeper import REPOSITORY, TEMPORAL, TRIGGERER, WORKER
from tests.bridge.processes import is_alive, send
from tests.bridge.stack import Stack


async def test_a_plain_dag_runs(airflow: AirflowAPI) -> None:
    run = await airflow.trigger("plain", {"number": 21})
    task = run.task("double")
    await task.until("success")

    assert await run.until_ended() == "success"
    assert await task.xcom() == 42
    assert "doubling 21" in await task.log()


async def test_airflow_knows_the_providers(airflow: AirflowAPI) -> None:
    assert "apache-airflow-providers-common-ai" in await airflow.providers()


async def test_a_viewer_may_look_and_not_act(airflow: AirflowAPI) -> None:
    vera = airflow.as_user("vera")

    assert "plain" in await vera.dags()
    with pytest.raises(httpx.HTTPStatusError, match="403"):
        await vera.trigger("plain")


@pytest.mark.alone
async def test_what_is_killed_is_up_again_and_what_waits_goes_on(
    airflow: AirflowAPI, stack: Stack, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    agents = await Client.connect(stack.temporal_address)
    agent_run = await agents.start("support", script([("wait", {"gate": gate.name})]))
    run = await airflow.trigger("gated", {"gate": str(gate)})
    hold, defer = run.task("hold"), run.task("defer")
    await hold.until("running")
    await defer.until("deferred")
    pids = [stack.pid(name) for name in (WORKER, TEMPORAL, TRIGGERER)]

    async def process() -> list[int]:
        return await stack.task_processes(hold)

    send(await eventually(process), SIGKILL)
    await asyncio.gather(stack.kill(WORKER), stack.kill(TEMPORAL), stack.kill(TRIGGERER))
    await hold.until("running", try_number=2)
    gate.touch()
    stack.open_gate(gate.name)

    assert await run.until_ended() == "success"
    assert (await hold.info())["try_number"] == 2
    assert (await defer.log()).count("resumed") == 1
    assert (await (await Client.connect(stack.temporal_address)).attach(agent_run.id).result()).output == "done"
    assert [line["turn"] for line in stack.ledger(agent_run.id) if line["what"] == "model"] == [0, 1]
    assert not any(pid is not None and is_alive(pid) for pid in pids)


async def test_who_wants_a_turn_alone_gets_it_before_those_who_come_later(tmp_path: Path) -> None:
    turns: list[str] = []
    may_end = asyncio.Event()

    async def take(name: str, *, alone: bool) -> None:
        async with Stack(tmp_path).turn(alone=alone):
            turns.append(name)
            if not alone:
                await may_end.wait()
            turns.append(name)

    async def began(name: str) -> bool:
        return name in turns

    async with asyncio.TaskGroup() as group:
        group.create_task(take("first", alone=False))
        await eventually(lambda: began("first"))
        group.create_task(take("second", alone=False))
        await eventually(lambda: began("second"))
        alone = group.create_task(take("alone", alone=True))
        await asyncio.sleep(0)
        group.create_task(take("later", alone=False))
        may_end.set()
        await alone

    assert turns[:2] == ["first", "second"]
    assert turns[4:] == ["alone", "alone", "later", "later"]


USER = """
import asyncio, sys
from pathlib import Path
from tests.bridge.stack import Stack

async def use() -> None:
    async with Stack.shared(Path(sys.argv[1]), ["temporal"]) as stack:
        print("up", flush=True)
        await asyncio.sleep(600)

asyncio.run(use())
"""


async def test_it_ends_when_its_last_user_does_even_by_a_kill(tmp_path: Path) -> None:
    async def user() -> asyncio.subprocess.Process:
        command = (sys.executable, "-c", USER, str(tmp_path))
        started = await asyncio.create_subprocess_exec(*command, cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE)
        assert started.stdout
        assert await started.stdout.readline() == b"up\n"
        return started

    first, second = await asyncio.gather(user(), user())
    pid = Stack(tmp_path).pid(TEMPORAL)
    assert pid is not None
    first.kill()
    await first.wait()
    async with Stack.shared(tmp_path, [TEMPORAL]) as stack:
        assert stack.pid(TEMPORAL) == pid  # It is the same one.
    assert is_alive(pid)
    second.kill()
    await second.wait()

    async def is_gone() -> bool:
        return not is_alive(pid)

    await eventually(is_gone)
    async with Stack.shared(tmp_path, [TEMPORAL]) as stack:
        assert stack.pid(TEMPORAL) != pid  # It is started again for those who come later.
