"""Settings, read once: by the command line, or by whoever makes the app. A flag beats `INTERLOCK_*` beats a default."""

from typing import Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from interlock.contracts import names
from interlock.contracts.budgets import read_budget
from interlock.contracts.errors import MisconfiguredError
from interlock.contracts.payloads import DEFAULT_STUCK_SECONDS, Budget


class Settings(BaseSettings):
    """How workers run an app, and how runs are started. Each field is read from `INTERLOCK_` and its name in capitals.

    task_queue: where runs wait for a worker.
    tool_timeout_seconds: how long one attempt of a tool or model call may work before it fails and is tried again;
    time spent waiting for an agent that the tool has started does not count. A tool's own
    `metadata={"temporal": ActivityConfig(start_to_close_timeout=...)}` takes precedence.
    lost_worker_seconds: how long the next step of a run waits for a worker that had the run in its cache.
    max_cached_runs: runs kept in memory by a worker; the others are replayed when something happens to them.
    max_concurrent_activities: model and tool calls at once in one worker.
    graceful_shutdown_seconds: how long a stopping worker lets calls finish.
    stuck_seconds: how long a run whose step has failed for good waits to be retried before it ends by itself; 0 ends
    it at once. Fixed at the run's start.
    budget: of runs that are started without one, such as `requests=50,cost=2.00`; none when empty.
    metrics_address: HOST:PORT at which `interlock worker run` shows its metrics to Prometheus; nowhere when empty.
    deployment, build_id: the worker deployment version that a worker is of; runs that begin on it end on it. Both or
    neither: without them a worker has no version.
    openai_traces: whether a worker sends the OpenAI Agents SDK's own traces, prompts included, to OpenAI.
    """

    model_config = SettingsConfigDict(env_prefix="INTERLOCK_", frozen=True, extra="ignore", allow_inf_nan=False)

    task_queue: str = Field(default=names.DEFAULT_TASK_QUEUE, min_length=1)
    tool_timeout_seconds: float = Field(default=600, gt=0)
    lost_worker_seconds: float = Field(default=2, gt=0)
    max_cached_runs: int = Field(default=1_000, ge=0)
    max_concurrent_activities: int = Field(default=100, ge=1)
    graceful_shutdown_seconds: float = Field(default=30, ge=0)
    stuck_seconds: float = Field(default=DEFAULT_STUCK_SECONDS, ge=0)
    budget: str = ""
    metrics_address: str = Field(default="", pattern=r"^(\S+:\d+)?$")
    deployment: str = Field(default="", max_length=250)
    build_id: str = Field(default="", max_length=250)
    openai_traces: bool = False

    @field_validator("deployment")
    @classmethod
    def _is_a_name(cls, deployment: str) -> str:
        # A server leaves out workers of other names without a word: they would wait for runs for ever.
        if {".", ":"} & set(deployment) or deployment.startswith("__"):
            raise ValueError("may not contain . or : and may not begin with __")
        return deployment

    @field_validator("budget")
    @classmethod
    def _is_a_budget(cls, budget: str) -> str:
        try:
            if budget.strip():
                read_budget(budget)
        except MisconfiguredError as error:
            raise ValueError(str(error)) from None
        return budget

    @model_validator(mode="after")
    def _both_or_neither(self) -> Self:
        if bool(self.deployment) != bool(self.build_id):
            raise ValueError("INTERLOCK_DEPLOYMENT and INTERLOCK_BUILD_ID go together: give both or neither")
        return self

    @property
    def default_budget(self) -> Budget | None:
        """The budget of runs that are started without one."""
        return read_budget(self.budget) if self.budget.strip() else None

    @classmethod
    def read(cls, **given: object) -> "Settings":
        """The settings, with what is given in front of the environment. Raises MisconfiguredError naming the field."""
        try:
            return cls(**given)  # type: ignore[arg-type]
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False)
            problems = "; ".join(f"{_variable(one['loc'])}{one['msg']}" for one in found)
            raise MisconfiguredError(f"A setting cannot be used: {problems}") from error


def _variable(location: tuple[int | str, ...]) -> str:
    return f"INTERLOCK_{str(location[0]).upper()}: " if location else ""
