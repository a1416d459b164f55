"""Users' imports: nothing of theirs is loaded a second time, or refused, because it runs in a workflow."""

import importlib
import sys
from typing import Any

import pytest
from pydantic_ai.capabilities import AbstractCapability

from interlock import Interlock
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call

HEAVY = ["openai", "mcp", "fastmcp", "tiktoken", "requests", "cryptography.fernet", "opentelemetry.sdk.trace"]


@pytest.mark.parametrize("name", HEAVY)
async def test_a_package_may_be_imported_where_it_is_used(run_app: Running, name: str) -> None:
    loaded: list[Any] = []

    def load() -> None:
        loaded.append(importlib.import_module(name))

    class Hook(AbstractCapability[Any]):
        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            load()
            return request_context

    script = Script([call("load", "a")], "done")
    async with run_app(Interlock([agent(script, tools=[load], capabilities=[Hook()])])) as app:
        assert (await (await app.client.start("support", "go")).result()).output == "done"

    assert {id(module) for module in loaded} == {id(sys.modules[name])}
