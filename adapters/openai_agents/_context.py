"""The context of a run: how it travels to a step, and how what a step changed in it comes back."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args, get_origin, get_type_hints

from agents import Agent, FunctionTool, RunContextWrapper
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import from_json, to_json
from temporalio.exceptions import ApplicationError

from interlock.contracts import names
from interlock.contracts.errors import MisconfiguredError
from interlock.contracts.failures import problems
from interlock.contracts.payloads import Json


class ContextType:
    """What the contexts of one graph of agents are: a dataclass, a pydantic model, or plain JSON."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self._adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def load(self, written: Json) -> Any:
        """The context from its JSON. Raises ApplicationError (`InvalidInputError`) for another's."""
        if self.kind is Any or (written is None and not self._takes_null()):
            return written
        try:
            return self._adapter.validate_json(to_json(written))
        except ValidationError as error:
            # Not `from error`: the cause goes into the history too, and it quotes the input.
            raise ApplicationError(
                f"The dependencies (deps) do not fit the context type {_name(self.kind)}: {problems(error)}",
                type=names.INVALID_INPUT,
                non_retryable=True,
            ) from None

    def dump(self, context: Any) -> Json:
        """The context as JSON. Raises ApplicationError, not retried, when it cannot be written."""
        try:
            return from_json(to_json(context) if self.kind is Any else self._adapter.dump_json(context))
        except ValueError as error:
            raise ApplicationError(
                f"The run's context cannot be written as JSON: {error}. Keep plain data in it; make clients in tools.",
                type=names.NOT_SERIALIZABLE,
                non_retryable=True,
            ) from None

    def _takes_null(self) -> bool:
        return isinstance(None, self.kind) if isinstance(self.kind, type) else type(None) in get_args(self.kind)


class Context:
    """The context of a run in the workflow, with what its steps have changed."""

    def __init__(self, kind: ContextType, written: Json) -> None:
        self._kind = kind
        self.value = kind.load(written)

    def dump(self) -> Json:
        """As a step gets it."""
        return self._kind.dump(self.value)

    def change(self, before: Json, changes: Mapping[str, Json], step: str) -> None:
        """Take over what a step has changed; see `change`."""
        change(self._kind, self.value, before, changes, step)


def change(kind: ContextType, value: Any, before: Json, changes: Mapping[str, Json], step: str) -> None:
    """Take over into a context what a step has changed. before: what it was given. step: which one, for people.

    Steps that run side by side may change different fields. Raises ApplicationError, not retried, when a field was
    changed meanwhile: what one of them wrote would be lost.
    """
    if not changes:
        return
    now = kind.dump(value)
    old, new = (one if isinstance(one, dict) else {} for one in (before, now))
    if lost := sorted(name for name in changes if new.get(name) != old.get(name) and new.get(name) != changes[name]):
        raise ApplicationError(
            f"{step} changed {', '.join(lost)} in the run's context, and so did a call beside it: one of the "
            "changes would be lost. Let each tool write fields of its own, or turn parallel tool calls off.",
            type=names.CONTEXT_CONFLICT,
            non_retryable=True,
        )
    if isinstance(value, dict):
        value.update(changes)
        return
    whole = kind.load({**new, **changes})
    for name in _fields_of(value, changes):
        setattr(value, name, getattr(whole, name))


def changes_of(before: Json, after: Json) -> dict[str, Json]:
    """The fields of a context that differ."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return {}
    return {name: value for name, value in after.items() if name not in before or before[name] != value}


def context_type(agents: Iterable[Agent[Any]]) -> ContextType:
    """The type that the agents and their tools say their context has.

    Raises MisconfiguredError when they say different ones, or one that cannot travel.
    """
    said = {repr(kind): (kind, where) for kind, where in _said(agents) if kind not in (Any, object, None)}
    if len(said) > 1:
        different = "; ".join(f"{_name(kind)} ({where})" for kind, where in said.values())
        raise MisconfiguredError(f"The agents of one app share one context type, and there are: {different}.")
    kind = next(iter(said.values()))[0] if said else Any
    try:
        return ContextType(kind)
    except PydanticUserError as error:
        raise MisconfiguredError(
            f"The context type {_name(kind)} cannot travel to a step. Make it a pydantic model or a dataclass of plain "
            "data; make clients inside the tools."
        ) from error


def _said(agents: Iterable[Agent[Any]]) -> Iterable[tuple[Any, str]]:
    for agent in agents:
        made_as = getattr(agent, "__orig_class__", None)
        if made_as is not None:
            yield get_args(made_as)[0], f"agent {agent.name}"
        for tool in agent.tools:
            if isinstance(tool, FunctionTool) and (function := getattr(tool, "__wrapped__", None)) is not None:
                yield _first_parameter(function), f"tool {tool.name}"
        if callable(agent.instructions):
            yield _first_parameter(agent.instructions), f"instructions of {agent.name}"


def _first_parameter(function: Callable[..., Any]) -> Any:
    """What the wrapper that a function takes first holds; None when it takes none or does not say."""
    try:
        parameters = list(inspect.signature(function).parameters)
        hint = get_type_hints(function).get(parameters[0]) if parameters else None
    except (NameError, TypeError, ValueError):
        return None
    origin = get_origin(hint)
    wrapped = isinstance(origin, type) and issubclass(origin, RunContextWrapper)
    return get_args(hint)[0] if wrapped and not hasattr(get_args(hint)[0], "__bound__") else None


def _fields_of(value: Any, changes: Mapping[str, Json]) -> Iterable[str]:
    if isinstance(value, BaseModel):
        aliases = {field.serialization_alias or name: name for name, field in type(value).model_fields.items()}
        return [aliases[name] for name in changes if name in aliases]
    return [field.name for field in dataclasses.fields(value) if field.name in changes]


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)
