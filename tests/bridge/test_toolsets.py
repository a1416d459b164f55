"""Toolsets of Airflow's common.ai provider as tools of agents, on a worker that has Airflow's connections.

No Airflow process runs: the connections are in the environment, as on any worker.
"""

import json
import logging
import sqlite3
import sys
import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.exceptions import UserError
from pydantic_ai.toolsets import AbstractToolset
from temporalio.common import RetryPolicy

from interlock import Interlock, Retries, Run, RunFailedError, Settings
from interlock.adapters.pydantic_ai import Durable
from interlock.cli._logs import log_to_stderr_again
from interlock.server import EmbeddedServer
from interlock.testing import running
from interlock.worker import make_replayer
from tests.conformance.frameworks import FRAMEWORKS, Call, Framework, Script
from tests.workflows import mcp_server

with warnings.catch_warnings():
    # Airflow sets up the log of the process that imports it; the one of the tests is pytest's.
    warnings.simplefilter("ignore")
    root, handlers, level = logging.getLogger(), logging.getLogger().handlers[:], logging.getLogger().level
    from airflow.providers.common.ai.tools.openai_agents import AirflowTools
    from airflow.providers.common.ai.toolsets import HookToolset, MCPToolset, SQLToolset
    from airflow.providers.common.ai.toolsets.object_storage import ObjectStorageToolset
    from airflow.providers.common.ai.toolsets.skills import AgentSkillsToolset
    from airflow.sdk import BaseHook

    from interlock.demo import sql_analyst

    root.handlers, root.level = handlers, level
    logging.captureWarnings(False)

SECRET = "hunter22-till"
ORDERS = {"shop": [(1, "Ada", 10.5), (2, "Bob", 20.0)], "archive": [(3, "Cyd", 7.0)]}
WRONG = "select price from orders"


# The SDK's adapter raises this where the model has used its corrections up: that is the end, and no attempt to repeat.
NO_MORE = Retries(tools={"query": RetryPolicy(non_retryable_error_types=["_FailedToolCall"])})


class TillHook(BaseHook):
    """A hook of a system with a password, which it says wherever it can."""

    conn_name_attr = "till_conn_id"

    def __init__(self, till_conn_id: str, broken: int = 0) -> None:
        super().__init__()
        self.till_conn_id = till_conn_id
        self.calls: list[str] = []
        self._broken = broken

    def balance(self, account: str) -> str:
        """Say what is on an account."""
        self.calls.append(account)
        password = self.get_connection(self.till_conn_id).password
        if len(self.calls) <= self._broken:
            try:
                raise OSError(f"no line for {password}")
            except OSError as error:
                raise ConnectionError(f"the till does not answer {password}") from error
        return f"{account}: 7, by {password}"


class Orders(SQLToolset):  # type: ignore[misc]  # The provider is untyped here.
    """Has one id, whichever database it is of."""

    @property
    def id(self) -> str:
        return "orders"


@pytest.fixture(autouse=True)
def connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ORDERS:
        with sqlite3.connect(tmp_path / f"{name}.db") as database:
            database.execute("create table orders (id integer, customer text, total real)")
            database.executemany("insert into orders values (?, ?, ?)", ORDERS[name])
        database.close()
        about = {"conn_type": "sqlite", "host": str(tmp_path / f"{name}.db")}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(about))
    monkeypatch.setenv("AIRFLOW_CONN_TILL", json.dumps({"conn_type": "generic", "password": SECRET}))
    command = {"transport": "stdio", "command": sys.executable}
    shelf = {**command, "args": [str(Path(mcp_server.__file__)), str(tmp_path / "taken")]}
    monkeypatch.setenv("AIRFLOW_CONN_SHELF", json.dumps({"conn_type": "mcp", "extra": shelf}))


@pytest.fixture(params=FRAMEWORKS, ids=lambda framework: framework.name)
def framework(request: pytest.FixtureRequest) -> Framework:
    made: Framework = request.param
    return made


def app_of(
    framework: Framework,
    script: Script,
    *toolsets: Any,
    gated: Sequence[str] = (),
    retries: Retries = NO_MORE,
    stuck_seconds: float = 0,
) -> Interlock:
    """An app with an agent that has the toolsets, of which some tools need an approval."""
    agent = framework.agent(script)
    if isinstance(agent, PydanticAgent):
        held: list[AbstractToolset[Any]] = [
            one.approval_required(lambda ctx, tool, args: tool.name in gated) if gated else one for one in toolsets
        ]
        agent = PydanticAgent(agent.model, name="support", toolsets=held, capabilities=[Durable()])
    else:
        agent.tools = AirflowTools(*toolsets)
        for tool in agent.tools:
            tool.needs_approval = tool.name in gated
    return Interlock([agent], settings=Settings.read(stuck_seconds=stuck_seconds), retries=retries)


def query(call_id: str, sql: str) -> Call:
    return Call("query", call_id, {"sql": sql})


async def contents(run: Run) -> bytes:
    """All that the server keeps of a run."""
    history = await run._handle.fetch_history()
    return b"".join(event.SerializeToString() for event in history.events)


def told(script: Script) -> dict[str, str]:
    """What the model was told of each call, by call id."""
    return {call_id: text for turn in range(script.calls) for call_id, text in script.results(turn).items()}


async def test_a_sql_analyst(framework: Framework, server: EmbeddedServer) -> None:
    script = Script(
        [Call("list_tables", "tables", {}), Call("get_schema", "schema", {"table_name": "orders"})],
        [query("wrong", WRONG)],
        [query("all", "select * from orders")],
        [query("write", "delete from orders")],
        [query("refused", "select customer from orders")],
        "30.5",
    )
    app = app_of(framework, script, SQLToolset("shop", allowed_tables=["orders"], max_retries=2), gated=["query"])
    async with running(app, server, max_cached_workflows=0) as at_work:
        run = await at_work.client.start("support", "What did we take?")
        for verdict in ("approve", "approve", "approve", "reject"):
            (request,) = await at_work.requests(run, 1)
            await run.decide(request.request_id, verdict, digest=request.digest)

        assert (await run.result()).output == "30.5"
        steps = [step.summary.partition(":")[0] for step in await run.steps() if step.kind == "tool"]
    results = told(script)
    assert results["tables"] == '["orders"]'
    assert '"customer"' in results["schema"]
    assert "no such column: price" in results["wrong"]
    assert json.loads(results["all"])["rows"] == [list(order) for order in ORDERS["shop"]]
    assert "The query tool failed" in results["write"]
    assert results["refused"] == framework.denied
    assert steps == ["list_tables", "get_schema", "query", "query", "query"]


async def test_a_connections_password_is_masked_in_what_a_hook_returns_and_raises(
    framework: Framework, server: EmbeddedServer
) -> None:
    hook = TillHook("till", broken=2)
    script = Script([Call("balance", "a", {"account": "ada"})], "7")
    policy = RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=2)
    toolset = HookToolset(hook, allowed_methods=["balance"])
    app = app_of(framework, script, toolset, retries=Retries(tools={"balance": policy}), stuck_seconds=60)
    async with running(app, server, max_cached_workflows=0) as at_work:
        run = await at_work.client.start("support", "go")
        state = await at_work.state(run, lambda state: state.status == "stuck")
        assert "the till does not answer ***" in state.stuck[0].message
        await run.retry()
        assert (await run.result()).output == "7"

        assert hook.calls == ["ada"] * 3
        assert told(script)["a"] == "ada: 7, by ***"
        assert SECRET.encode() not in await contents(run)


async def test_the_models_corrections_are_counted_as_outside(framework: Framework, server: EmbeddedServer) -> None:
    right = query("right", "select 1")
    script = Script([query("a", WRONG)], [right], [query("b", WRONG)], [query("c", WRONG)], "never")
    app = app_of(framework, script, SQLToolset("shop", max_retries=1))
    async with running(app, server, max_cached_workflows=0) as at_work:
        run = await at_work.client.start("support", "go")
        with pytest.raises(RunFailedError, match=r"exceeded max retries|query kept failing after 1 correction"):
            await run.result()

    assert script.calls == 4


async def test_an_approval_for_one_connection_is_never_taken_for_another(
    framework: Framework, server: EmbeddedServer
) -> None:
    script = Script([query("a", "select customer from orders")], "done")
    async with running(app_of(framework, script, Orders("shop"), gated=["query"]), server) as at_work:
        run = await at_work.client.start("support", "go")
        (request,) = await at_work.requests(run, 1)
        queue = at_work.client.task_queue
    app = app_of(framework, script, Orders("archive"), gated=["query"])
    async with running(app, server, task_queue=queue) as at_work:
        run = at_work.client.attach(run.id)
        await run.decide(request.request_id, "approve", digest=request.digest)
        (again,) = (
            await at_work.state(run, lambda state: [one.request_id for one in state.requests] == ["2"])
        ).requests
        assert again.digest != request.digest
        await run.decide(again.request_id, "approve", digest=again.digest)
        await run.result()

    assert json.loads(told(script)["a"])["rows"] == [["Cyd"]]


def test_a_wrapper_does_not_hide_which_connection_a_tool_goes_to() -> None:
    def fingerprint(connection: str) -> str:
        toolset = SQLToolset(connection).prefixed("of")
        agent = PydanticAgent("test", name="support", toolsets=[toolset], capabilities=[Durable()])
        return Interlock([agent]).adapter().fingerprint("support", "", "of_query")

    assert fingerprint("shop") == fingerprint("shop") != fingerprint("archive")


async def test_files(framework: Framework, server: EmbeddedServer, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("hello")
    script = Script(
        [Call("read_file", "file", {"path": "a.txt"})],
        [Call("read_file", "none", {"path": "b.txt"})],
        "done",
    )
    app = app_of(framework, script, ObjectStorageToolset((tmp_path / "files").as_uri()))
    async with running(app, server) as at_work:
        await (await at_work.client.start("support", "go")).result()

    results = told(script)
    assert results["file"] == "hello"
    assert json.loads(results["none"]) == {"error": "'b.txt' is not a file."}


async def test_hooks_and_mcp_servers(server: EmbeddedServer, tmp_path: Path) -> None:
    script = Script(
        [
            Call("till_balance", "hook", {"account": "ada"}),
            Call("till_balance", "extra", {"account": "ada", "till": "other"}),
            Call("take", "mcp", {"thing": "book"}),
        ],
        "done",
    )
    till = HookToolset(TillHook("till"), allowed_methods=["balance"], tool_prefix="till")
    app = app_of(FRAMEWORKS[0], script, till, MCPToolset("shelf"))
    async with running(app, server) as at_work:
        run = await at_work.client.start("support", "go")
        await run.result()
        await make_replayer(app).replay_workflow(await run._handle.fetch_history())

    results = told(script)
    assert "Extra inputs are not permitted" in results.pop("extra")
    assert results == {
        "hook": "ada: 7, by ***",
        "mcp": "took book",
    }
    assert (tmp_path / "taken").read_text() == "book\n"


def test_two_toolsets_of_one_connection_and_one_without_an_id_are_refused() -> None:
    for toolsets, why in (
        ([SQLToolset("shop"), SQLToolset("shop", schema="old")], "Two toolsets have the same `id` 'sql-shop'"),
        ([AgentSkillsToolset(["skills"])], "need to have a unique `id`"),
    ):
        with pytest.raises(UserError, match=why):
            PydanticAgent("test", name="support", toolsets=toolsets, capabilities=[Durable()])


def test_a_workers_log_stays_on_stderr_and_has_no_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(root, "handlers", [logging.StreamHandler(sys.stdout)])  # As Airflow leaves it.
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(logging.getLogger("temporalio.core"), "level", 0)
    log_to_stderr_again(verbose=True)
    with pytest.raises(ConnectionError) as failed:
        TillHook("till", broken=1).balance("ada")
    logging.getLogger("airflow.tool").warning("Tool %s failed", "balance", exc_info=failed.value)

    said = capsys.readouterr()
    assert said.out == ""
    assert "the till does not answer ***" in said.err
    assert SECRET not in said.err


async def test_the_example_answers_from_its_database(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", (tmp_path / "shop.db").as_uri().replace("file:", "sqlite:"))
    script = Script([query("a", "select max(total) from orders")], "Bob")
    async with running(sql_analyst.analyst(FRAMEWORKS[0].agent(script).model), server) as at_work:
        run = await at_work.client.start("analyst", "Who spent most?")
        assert (await run.result()).output == "Bob"

    assert json.loads(told(script)["a"])["rows"] == [[20.0]]
