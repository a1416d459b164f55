"""MCP servers of agents: what the workflow knows of them, and the worker's connections to them."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from agents import Agent, AgentBase, FunctionTool, ModelBehaviorError, RunContextWrapper
from agents.mcp import MCPServer
from mcp import MCPError
from mcp.types import Tool as MCPTool
from pydantic import BaseModel

from interlock.adapters._calls import planned
from interlock.adapters.openai_agents._scope import current_scope
from interlock.adapters.openai_agents._steps import step, until_done
from interlock.contracts import names
from interlock.contracts.payloads import Json

_SETTINGS = (
    *("use_structured_content", "_needs_approval_policy", "_failure_error_function", "tool_meta_resolver"),
    *("custom_data_extractor", "tool_input_guardrails", "tool_output_guardrails"),
)


class ListInput(BaseModel):
    """Which server's tools are wanted: at: of the agent's servers."""

    at: int
    context: Json = None
    serialized_run_context: dict[str, Json] = {}


class RecordedServer(MCPServer):
    """A server as the workflow knows it: its tools are asked for in a step. Calls go through the tools' own steps."""

    def __init__(self, agent: Agent[Any], at: int) -> None:
        super().__init__()
        self._agent = agent
        self._at = at
        self._server = agent.mcp_servers[at]
        self._kept: list[MCPTool] | None = None
        for name in _SETTINGS:
            if hasattr(self._server, name):  # Servers of 0.22.0 have no guardrails.
                setattr(self, name, getattr(self._server, name))

    @property
    def name(self) -> str:
        """See `MCPServer`."""
        return self._server.name

    async def list_tools(
        self, run_context: RunContextWrapper[Any] | None = None, agent: AgentBase | None = None
    ) -> list[MCPTool]:
        """The tools as a step found them; once per run where the server says that they stay the same."""
        if self._kept is not None:
            return self._kept
        tools = await self._listed()
        if getattr(self._server, "cache_tools_list", False):
            self._kept = tools
        return tools

    async def _listed(self) -> list[MCPTool]:
        scope = current_scope.get()
        assert scope, "A recorded server is only used inside a run."
        label = f"tools of {self.name}"

        async def make() -> list[MCPTool]:
            told = scope.told(scope.path_to(self._agent.name))
            wanted = ListInput(at=self._at, context=scope.context.dump(), serialized_run_context=told)
            with planned(label):
                activity = names.list_tools_activity(self._agent.name)
                tools: list[MCPTool] = await step(activity, wanted, list[MCPTool], scope.retries.tool)
            return tools

        return await until_done(scope, label, make)

    async def connect(self) -> None:
        """Nothing: the worker connects."""

    async def cleanup(self) -> None:
        """Nothing: the worker connects."""

    async def call_tool(self, *args: Any, **named: Any) -> Any:
        """Never called: a call is a step of its tool's."""
        raise NotImplementedError

    async def list_prompts(self) -> Any:
        """See `MCPServer`. Agents do not ask for prompts."""
        raise NotImplementedError

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        """See `MCPServer`. Agents do not ask for prompts."""
        raise NotImplementedError


class Servers:
    """A worker's connections to its agents' servers, each made when first needed and kept until the worker stops."""

    def __init__(self) -> None:
        self._connections: dict[int, _Connection] = {}

    @asynccontextmanager
    async def using(self, servers: Iterable[MCPServer]) -> AsyncIterator[None]:
        """Connections to these servers. Raises what a server that cannot be reached raises.

        One that breaks is broken for everybody who uses it; the next who needs it connects again.
        """
        for server in servers:
            await self._connected(server)
        try:
            yield
        except (MCPError, ModelBehaviorError):
            raise  # The server has answered, or was never asked.
        except Exception:  # Transports have no error in common: it may be the connection.
            for server in servers:
                if connection := self._connections.pop(id(server), None):
                    await connection.close()
            raise

    async def _connected(self, server: MCPServer) -> None:
        connection = self._connections.get(id(server))
        if connection is None:
            connection = self._connections[id(server)] = _Connection(server)
        try:
            await asyncio.shield(connection.ready)
        except BaseException:
            if connection.ready.done():
                self._connections.pop(id(server), None)
            raise

    async def close(self) -> None:
        """End all connections."""
        for connection in list(self._connections.values()):
            await connection.close()
        self._connections.clear()


class _Connection:
    """One connection, opened and closed in one task, as the MCP library wants it."""

    def __init__(self, server: MCPServer) -> None:
        self._server = server
        self._stop = asyncio.Event()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._held())

    async def _held(self) -> None:
        try:
            await self._server.connect()  # type: ignore[no-untyped-call]
            if not self.ready.done():
                self.ready.set_result(None)
            await self._stop.wait()
        except Exception as error:
            if not self.ready.done():
                self.ready.set_exception(error)
        finally:
            await self._server.cleanup()  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        self._stop.set()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # A broken connection may not close well; it is gone all the same.
        if self.ready.done() and not self.ready.cancelled():
            self.ready.exception()  # Somebody has seen it, or nobody wanted it.


def server_of(agent: Agent[Any], toolset: str) -> MCPServer | None:
    """The agent's server with this name."""
    return next((one for one in agent.mcp_servers if toolset in (one.name, one._error_name)), None)


def connection_of(server: MCPServer) -> Json:
    """What says which server it is, without its secrets: a command, or an address."""
    params: Any = getattr(server, "params", None)
    if isinstance(params, dict):
        return [type(server).__name__, server.name, str(params.get("url", ""))]
    return [type(server).__name__, server.name, getattr(params, "command", ""), list(getattr(params, "args", []))]


def toolset_of(tool: FunctionTool) -> str:
    """The name of the server that a tool is from; empty for the agent's own."""
    origin = tool._tool_origin
    return (origin.mcp_server_name or "") if origin is not None else ""
