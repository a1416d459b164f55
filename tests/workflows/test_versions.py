"""Deployment versions: a run ends on the build it began on, and nothing waits for a build without being named."""

import asyncio
import shlex
import uuid
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic_ai import Tool
from temporalio.common import WorkerDeploymentVersion

from interlock import Client, Interlock, MisconfiguredError, Run, Settings, UnavailableError
from interlock._versions import Workers, pin_of, promotion, workers_of
from interlock.cli._versions_check import versions_checks
from interlock.replay import Wanted, count_on_server
from interlock.server import EmbeddedServer, temporal_binary
from interlock.testing import RunningApp, eventually
from interlock.worker import make_worker, run_worker
from tests.workflows.scripts import Script, agent, call


@dataclass(frozen=True)
class Deployment:
    """A worker deployment and its task queue, for builds of one app."""

    name: str
    client: Client
    server: EmbeddedServer

    def version(self, build: str) -> WorkerDeploymentVersion:
        return WorkerDeploymentVersion(self.name, build)

    @asynccontextmanager
    async def running(self, build: str, *agents: Any) -> AsyncIterator[RunningApp]:
        """A worker of a build, until the block ends. An empty build has no version."""
        name = self.name if build else ""
        app = Interlock(agents, settings=Settings(deployment=name, build_id=build, task_queue=self.client.task_queue))
        stop = asyncio.Event()
        worker = asyncio.create_task(run_worker(app, self.client, stop))

        async def polls() -> bool:
            return (self.version(build) if build else None) in (await workers_of(self.client)).polling

        try:
            await eventually(polls)
            yield RunningApp(self.client, self.server)
        finally:
            stop.set()
            await worker

    async def promote(self, build: str) -> None:
        await self.temporal(promotion(self.version(build)))

        async def current() -> bool:
            return (await workers_of(self.client)).current == self.version(build)

        await eventually(current)

    async def temporal(self, command: str) -> None:
        """Give the command, again while it fails: a version that has just begun to poll may not be known yet."""
        _, *arguments = shlex.split(command)

        async def done() -> bool:
            process = await asyncio.create_subprocess_exec(
                temporal_binary(), *arguments, "--address", self.server.address, stdout=DEVNULL, stderr=DEVNULL
            )
            return await process.wait() == 0

        await eventually(done)

    async def version_of(self, run: Run) -> WorkerDeploymentVersion | None:
        return pin_of(await self.client.temporal.get_workflow_handle(run.id).describe())


@pytest.fixture
async def deployment(server: EmbeddedServer) -> Deployment:
    name = f"d-{uuid.uuid4().hex[:8]}"
    return Deployment(name, await Client.connect(server.address, task_queue=name), server)


def refunder(log: list[str], build: str, tool: str = "refund") -> Any:
    """An agent of one build: with another name of its tool, a build cannot replay its runs."""

    def refund() -> str:
        log.append(build)
        return f"refunded by {build}"

    return agent(
        Script([call(tool, "a")], "done"), name="support", tools=[Tool(refund, name=tool, requires_approval=True)]
    )


async def approve(app: RunningApp, run: Run) -> None:
    await app.requests(run, 1)
    await run.decide("1", "approve")
    assert (await run.result()).output == "done"


async def test_a_waiting_run_ends_on_its_own_build_and_new_runs_go_to_the_current_one(deployment: Deployment) -> None:
    log: list[str] = []
    async with deployment.running("1", refunder(log, "1")) as app:
        await deployment.promote("1")
        waiting = await deployment.client.start("support", "go")
        await app.requests(waiting, 1)
        assert await count_on_server(deployment.client, Wanted()) == 1
        assert await count_on_server(deployment.client, Wanted(unpinned=True)) == 0
        async with deployment.running("2", refunder(log, "2", tool="pay_back")):
            await deployment.promote("2")
            later = await deployment.client.start("support", "go")
            await approve(app, later)
            await approve(app, waiting)

            assert log == ["2", "1"]
            assert await deployment.version_of(waiting) == deployment.version("1")
            assert await deployment.version_of(later) == deployment.version("2")


async def test_the_run_of_a_tools_agent_stays_on_the_version_of_the_run_above(deployment: Deployment) -> None:
    log: list[str] = []
    one = refunder(log, "1")

    async def ask() -> str:
        return str((await one.run("go")).output)

    lead = agent(
        Script([call("begin", "b")], [call("ask", "c")], "all done"),
        name="lead",
        tools=[Tool(lambda: "begun", name="begin", requires_approval=True), ask],
    )
    async with deployment.running("1", lead, one) as app:
        await deployment.promote("1")
        run = await deployment.client.start("lead", "go")
        await app.requests(run, 1)
        async with deployment.running("2", lead, refunder(log, "2", tool="pay_back")):
            await deployment.promote("2")
            await run.decide("1", "approve")
            (sub_run,) = (await app.state(run, lambda state: bool(state.sub_runs))).sub_runs
            child = deployment.client.attach(sub_run.workflow_id)
            await approve(app, child)

            assert (await run.result()).output == "all done"
            assert log == ["1"]
            assert await deployment.version_of(child) == deployment.version("1")


async def test_a_version_that_is_not_current_is_named_with_the_command_that_makes_it_so(
    deployment: Deployment,
) -> None:
    async with deployment.running("1", refunder([], "1")) as app:
        run = await deployment.client.start("support", "go")
        with pytest.raises(UnavailableError, match="has workers but is not current") as waits:
            await run.accepted()

        assert f"is stored and begins when one starts. Version {deployment.name}:1" in str(waits.value)
        assert str(waits.value).endswith(promotion(deployment.version("1")))
        await deployment.promote("1")
        await approve(app, run)


async def test_a_session_outlives_the_build_that_it_began_on(deployment: Deployment) -> None:
    """Its runs are pinned. Were it pinned too, it would end with the workers of its first build."""
    for build, said in (("1", "one"), ("2", "two")):
        async with deployment.running(build, agent(Script("one", "two"))):
            await deployment.promote(build)
            run = await deployment.client.start("support", "go", session=deployment.name)
            output = await run.result()
            assert (output.output, output.turn) == (said, int(build))
            assert await deployment.version_of(run) == deployment.version(build)


async def test_without_versions_a_run_that_waits_goes_on_with_the_next_build(deployment: Deployment) -> None:
    log: list[str] = []
    async with deployment.running("", refunder(log, "1")) as app:
        run = await deployment.client.start("support", "go")
        await app.requests(run, 1)
    async with deployment.running("", refunder(log, "2")) as app:
        await approve(app, run)

    assert log == ["2"]
    assert await deployment.version_of(run) is None


async def test_a_worker_without_a_version_gets_nothing_once_a_version_is_current(deployment: Deployment) -> None:
    log: list[str] = []
    async with deployment.running("", refunder(log, "none")) as app:
        begun_without = await deployment.client.start("support", "go")
        await app.requests(begun_without, 1)
        assert await count_on_server(deployment.client, Wanted(unpinned=True)) == 1
        assert await deployment.version_of(begun_without) is None
        async with deployment.running("1", refunder(log, "1")):
            await deployment.promote("1")
            await approve(app, begun_without)
            await approve(app, await deployment.client.start("support", "go"))

            assert log == ["1", "1"]
            assert await deployment.version_of(begun_without) == deployment.version("1")


async def test_runs_whose_version_has_no_worker_are_named_with_what_to_do(deployment: Deployment) -> None:
    client, one, two = deployment.client, deployment.version("1"), deployment.version("2")
    async with deployment.running("1", refunder([], "1")) as app:
        await deployment.promote("1")
        waiting = await client.start("support", "go")
        await app.requests(waiting, 1)
        assert [check.ok async for check in versions_checks(client, await workers_of(client))] == [True]
    async with deployment.running("2", refunder([], "2")) as app:
        await deployment.promote("2")
        # What the server says a minute later; until then it takes the worker that has just stopped for one at work.
        workers = Workers(current=two, polling=frozenset([two]))

        assert workers.serve()
        assert not workers.serve(one)
        (check,) = [check async for check in versions_checks(client, workers)]
        assert (check.name, check.ok) == (f"version {deployment.name}:1", False)
        assert check.found == "no worker; open runs that are pinned to it: 1"
        assert f"interlock worker run MODULE:APP --deployment {deployment.name} --build-id 1" in check.todo
        await deployment.temporal(check.todo.partition("move them: ")[2])

        async def moved() -> bool:
            return await deployment.version_of(waiting) == two

        await eventually(moved)
        await approve(app, waiting)


async def test_without_these_settings_a_worker_has_no_version(server: EmbeddedServer) -> None:
    app = Interlock([refunder([], "none")])
    worker, _ = make_worker(app, await Client.connect(server.address))

    assert worker.config(active_config=True).get("deployment_config") is None
    assert str(worker.config(active_config=True)["build_id"]).startswith("interlock-")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"deployment": "support"}, "go together: give both or neither"),
        ({"build_id": "1"}, "go together: give both or neither"),
        ({"deployment": "a.b", "build_id": "1"}, r"INTERLOCK_DEPLOYMENT: .*may not contain \. or :"),
        ({"deployment": "a:b", "build_id": "1"}, r"INTERLOCK_DEPLOYMENT: .*may not contain \. or :"),
        ({"deployment": "__a", "build_id": "1"}, "may not begin with __"),
    ],
)
def test_a_version_that_a_server_would_leave_out_in_silence_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(MisconfiguredError, match=message):
        Settings.read(**given)
