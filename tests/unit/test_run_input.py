"""An input that an agent cannot take ends its run by name; it must never leave the run in endless retries."""

import asyncio
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

import pytest
from pydantic import BaseModel, field_validator
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from temporalio.exceptions import ApplicationError

from interlock.adapters.pydantic_ai import Durable
from interlock.adapters.pydantic_ai.workflow import Runner
from interlock.contracts import names
from interlock.contracts.payloads import RunInput, RunOutput, Usage
from interlock.contracts.ports import CallsInside, GatedCall, ModelCall, Ruling
from interlock.retries import Retries
from interlock.workflows.reuse import Reuse
from interlock.workflows.stuck import StuckSteps


class Counting:
    """A gate for runs that ask nothing."""

    def __init__(self) -> None:
        self.usage = Usage()

    async def ask(self, call: GatedCall) -> Ruling:
        raise AssertionError(call)

    def count(self, usage: Usage) -> None:
        self.usage = usage

    account = None

    def model_call(self, agent_path: tuple[str, ...]) -> AbstractAsyncContextManager[ModelCall]:
        raise AssertionError(agent_path)

    def step(self) -> AbstractContextManager[CallsInside]:
        raise AssertionError


class Tenant(BaseModel):
    name: str
    level: int = 0


class Known(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return {"ann": name}[name]


async def run(deps_type: Any = None, **fields: Any) -> RunOutput:
    model = TestModel(custom_output_text="done")
    agent = Agent(model, name="support", deps_type=deps_type or type(None), capabilities=[Durable()])
    output = await Runner(agent, Retries(), judged=False, hooked=False).run(
        RunInput(**{"agent": "support", "prompt": "go", **fields}),
        Counting(),
        StuckSteps(0, lambda: None, lambda key: (0, 0), lambda key: asyncio.sleep(0), Reuse(None), 0),
        lambda: False,
    )
    assert isinstance(output, RunOutput)
    return output


@pytest.mark.parametrize(
    ("deps_type", "fields", "problem"),
    [
        (Tenant, {"deps": {"level": "high"}}, r"do not fit Tenant of agent 'support': name: .*; level: "),
        (Tenant, {}, "do not fit Tenant of agent 'support'"),
        (Tenant | None, {"deps": {"level": 1}}, "do not fit .*Tenant.* of agent 'support'"),
        (list[Tenant], {"deps": [{}]}, "of agent 'support': 0.name: "),
        (dict[str, int], {"deps": {"a": "x"}}, "of agent 'support': a: "),
        (Known, {"deps": {"name": "bob"}}, "do not fit Known of agent 'support'"),
        (None, {"deps": {"a": 1}}, r"takes no dependencies \(deps\), but some were given"),
        (None, {"prompt": [{"kind": "telepathy"}]}, "does not fit agent 'support'"),
        (None, {"message_history": [{"kind": "gossip"}]}, "does not fit agent 'support'"),
        (None, {"usage_limits": {"request_limit": "few"}}, "does not fit agent 'support': request_limit: "),
        (None, {"usage_limits": {"request_limt": 3}}, "request_limt"),
    ],
    ids=str,
)
async def test_an_input_that_does_not_fit_is_refused_by_name(
    deps_type: Any, fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ApplicationError, match=problem) as refused:
        await run(deps_type, **fields)
    assert (refused.value.type, refused.value.non_retryable) == (names.INVALID_INPUT, True)


async def test_what_is_said_of_an_input_does_not_quote_it() -> None:
    with pytest.raises(ApplicationError, match="name: ") as refused:
        await run(Tenant, deps={"name": {"hunter2": 1}, "level": "hunter2"})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("deps_type", "deps"),
    [(Tenant, {"name": "t"}), (Tenant | None, None), (Tenant | None, {"name": "t"}), (list[Tenant], []), (str, "t")],
    ids=str,
)
async def test_an_input_that_fits_is_taken(deps_type: Any, deps: Any) -> None:
    assert (await run(deps_type, deps=deps, usage_limits={"request_limit": 3})).output == "done"
