"""A budget holds while its workers are killed: no call more, none less, and no extension twice."""

import asyncio
import sys
from collections import Counter
from pathlib import Path

from interlock import Client, Run
from interlock.server import EmbeddedServer
from interlock.testing import RunningApp

REPOSITORY = Path(__file__).parents[2]


async def start_worker(server: EmbeddedServer, log: Path) -> asyncio.subprocess.Process:
    arguments = ["-m", "tests.acceptance.budget_worker", server.address, "budget", str(log)]
    return await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=REPOSITORY)


async def kill(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


async def at_the_limit(app: RunningApp, run: Run, spent: int) -> list[Run]:
    """Wait until the whole budget is spent and every agent in the tool waits for more; return their runs that ask."""
    state = await app.state(
        run,
        lambda state: (
            state.budget is not None
            and (state.budget.spent.requests, state.budget.under_way) == (spent, 0)
            and state.budget.waiting == sum(one.usage is None for one in state.sub_runs) > 0
        ),
    )
    runs = [app.client.attach(one.workflow_id) for one in state.sub_runs if one.usage is None]
    for one in runs:
        await app.requests(one, 1)
    return runs


async def test_workers_killed_at_the_limit_neither_overspend_nor_forget_an_extension(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    data = tmp_path / "data"
    server = await EmbeddedServer.start(port=0, ui=False, data=data)
    worker = await start_worker(server, log)
    app = RunningApp(await Client.connect(server.address, task_queue="budget"), server)
    run = await app.client.start("support", "go", budget={"requests": 4})
    waiting = await at_the_limit(app, run, 4)
    assert sum(Counter(log.read_text().splitlines()).values()) == 4
    await kill(worker)
    worker = await start_worker(server, log)
    await waiting[0].decide("1", "approve", arguments={"requests": 5}, by="ann")
    waiting = await at_the_limit(app, run, 9)
    await kill(worker)
    server.process.kill()
    await server.process.wait()
    again = await EmbeddedServer.start(port=int(server.address.rpartition(":")[2]), ui=False, data=data)
    worker = await start_worker(again, log)
    app = RunningApp(await Client.connect(again.address, task_queue="budget"), again)
    run = app.client.attach(run.id)
    (request, *_) = await app.requests(app.client.attach(waiting[0].id), 1)
    await app.client.attach(waiting[0].id).decide(request.request_id, "approve", arguments={"requests": 5}, by="ann")
    output = await run.result()
    state = await run.state()
    await kill(worker)
    await again.stop()

    assert Counter(log.read_text().splitlines()) == {
        **{f"part {number} {turn}": 1 for number in range(3) for turn in range(4)},
        "outer 0": 1,
        "outer 1": 1,
    }
    assert output.usage.requests == 14
    assert state.budget is not None
    assert (state.budget.limits.requests, state.budget.spent.requests, state.budget.under_way) == (14, 14, 0)
