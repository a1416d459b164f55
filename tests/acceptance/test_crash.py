"""Processes that are killed: nothing that was completed is run again, and nothing is lost."""

import asyncio
import sys
from collections import Counter
from pathlib import Path

from interlock import Client, Run
from interlock.server import EmbeddedServer
from interlock.testing import RunningApp, eventually

REPOSITORY = Path(__file__).parents[2]


class Workers:
    """Worker processes on one task queue, and the log of what ran in them."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        self._server = server
        self.log, self.gate = folder / "log", folder / "gate"
        self.log.touch()

    async def start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.acceptance.crash_worker",
            self._server.address,
            "crash",
            str(self.log),
            str(self.gate),
            cwd=REPOSITORY,
        )

    @property
    def ran(self) -> Counter[str]:
        return Counter(self.log.read_text().splitlines())

    async def until(self, line: str, times: int = 1) -> None:
        async def ran() -> bool:
            return self.ran[line] == times

        await eventually(ran, within_seconds=60)


async def kill(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


async def start(server: EmbeddedServer, prompt: str = "refund A-1") -> tuple[RunningApp, Run]:
    app = RunningApp(await Client.connect(server.address, task_queue="crash"), server)
    return app, await app.client.start("support", prompt)


ONCE = {"model 0": 1, "model 1": 1, "model 2": 1, "model 3": 1, "look A-1": 1, "look A-2": 1, "refund A-1": 1}


async def test_killed_workers_repeat_only_what_was_in_flight(tmp_path: Path) -> None:
    server = await EmbeddedServer.start(port=0, ui=False)
    workers = Workers(server, tmp_path)
    first = await workers.start()
    app, run = await start(server)
    await app.requests(run, 1)
    await kill(first)
    second = await workers.start()
    await app.requests(run, 1)  # It takes its time to load on a busy machine.
    await run.decide("1", "approve")
    await workers.until("slow")
    await kill(second)
    third = await workers.start()
    await workers.until("slow", 2)
    workers.gate.touch()
    output = await run.result()
    await kill(third)
    await server.stop()

    assert output.output == "done"
    assert workers.ran == {**ONCE, "slow": 2}
    assert output.usage.requests == 4


async def test_an_approved_call_whose_worker_died_is_asked_about_and_not_run_again(tmp_path: Path) -> None:
    server = await EmbeddedServer.start(port=0, ui=False)
    workers = Workers(server, tmp_path)
    first = await workers.start()
    app, run = await start(server, "pay slowly")
    await app.requests(run, 1)
    await run.decide("1", "approve")
    await workers.until("pay")
    await kill(first)
    second = await workers.start()
    state = await app.state(run, lambda state: [one.kind for one in state.requests] == ["outcome"])
    (question,) = state.requests
    await run.decide(question.request_id, "happened", result="paid, says the bank", digest=question.digest)
    workers.gate.touch()
    await run.result()
    await kill(second)
    await server.stop()

    assert "Request 1 was approved and the call began, but its worker was lost" in question.question
    assert workers.ran["pay"] == 1


async def test_a_restarted_server_goes_on_where_it_was(tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = await EmbeddedServer.start(port=0, ui=False, data=data)
    workers = Workers(server, tmp_path)
    workers.gate.touch()
    worker = await workers.start()
    app, run = await start(server)
    (request,) = await app.requests(run, 1)
    server.process.kill()
    await server.process.wait()
    port = int(server.address.rpartition(":")[2])
    again = await EmbeddedServer.start(port=port, ui=False, data=data)
    run = (await Client.connect(again.address, task_queue="crash")).attach(run.id)

    async def answered() -> bool:
        return [one.digest for one in await run.approvals()] == [request.digest]

    await eventually(answered)
    await run.decide("1", "approve", digest=request.digest)
    output = await run.result()
    await kill(worker)
    await again.stop()

    assert output.output == "done"
    assert workers.ran == {**ONCE, "slow": 1}


async def test_what_a_killed_worker_had_streamed_is_taken_back_and_readers_get_all_of_it(tmp_path: Path) -> None:
    server = await EmbeddedServer.start(port=0, ui=False)
    workers = Workers(server, tmp_path)
    first = await workers.start()
    client = await Client.connect(server.address, task_queue="crash")
    run = await client.start("writer", "go", stream=True)
    before = []
    async for event in run.events():
        before.append(event)
        if event.kind == "text" and len(before) > 4:
            break  # It drops out, and so does the worker.
    await kill(first)
    second = await workers.start()
    workers.gate.touch()
    after = [event async for event in run.events(from_offset=before[-1].offset + 1)]
    output = await run.result()
    events = [event async for event in run.events()]
    await kill(second)
    await server.stop()

    assert [*before, *after] == events
    voids = [at for at, event in enumerate(events) if event.kind == "attempt_failed"]
    assert [events[at].attempt for at in voids] == [1]
    assert "".join(event.text for event in events[voids[0] :] if event.kind == "text") == output.output
    assert output.output == "The whole answer."
