"""What a function tool is bound to that neither its name nor its schema shows."""

import dataclasses
from contextlib import suppress
from types import CellType, FunctionType
from typing import Any

from agents import FunctionTool

from interlock.adapters._worker import bound_to


def toolsets_in(tool: FunctionTool) -> list[str]:
    """What the toolsets that the tool's code holds go to.

    Tools that were made of a toolset, as Airflow's are, look the same whichever connection it goes to. The toolset is
    in the closure of what such a tool calls.
    """
    found: set[str] = set()
    seen: set[int] = set()
    left: list[Any] = [tool.on_invoke_tool]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if _is_toolset(one):
            found.update(bound_to(one))
        else:
            left += _held_by(one)
    return sorted(found)


def _is_toolset(one: Any) -> bool:
    return all(hasattr(type(one), name) for name in ("id", "get_tools", "call_tool"))


def _held_by(one: Any) -> list[Any]:
    if isinstance(one, FunctionType):
        return [_content(cell) for cell in one.__closure__ or ()]
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        values = (getattr(one, field.name, None) for field in dataclasses.fields(one))
        return [value for value in values if isinstance(value, FunctionType)]
    return [getattr(one, "_invoke_tool_impl", None)]  # What the SDK makes of a decorated function.


def _content(cell: CellType) -> Any:
    with suppress(ValueError):  # It is empty.
        return cell.cell_contents
    return None
