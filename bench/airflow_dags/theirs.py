"""The same model and tool by common.ai's own operator, durable, as its documentation has it."""

import time
from functools import cached_property
from typing import Any

from airflow.providers.common.ai.hooks.pydantic_ai import PydanticAIHook
from airflow.providers.common.ai.operators.agent import AgentOperator
from airflow.sdk import dag
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from bench.agents import follow, lookup


class Timed(AgentOperator):
    """Tells how long it took, in seconds: the process that it runs in is not counted."""

    @cached_property
    def llm_hook(self) -> PydanticAIHook:
        hook = PydanticAIHook("unused")
        hook._model = FunctionModel(follow)
        return hook

    def execute(self, context: Any) -> Any:
        began = time.perf_counter()
        result = super().execute(context)
        context["ti"].xcom_push("seconds", time.perf_counter() - began)
        return result


@dag(params={"prompt": ""})
def theirs() -> None:
    Timed(
        task_id="run",
        llm_conn_id="unused",
        prompt="{{ params.prompt }}",
        toolsets=[FunctionToolset([lookup], id="bench")],
        enable_tool_logging=False,
        usage_limits={"request_limit": 1_000},
        durable=True,
    )


theirs()
