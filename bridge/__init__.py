"""Airflow: the hook, operators, sensor and triggers that start runs and wait for them without holding a worker."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interlock.bridge.approvals import approvals_dag
    from interlock.bridge.decorator import agent_workflow_task
    from interlock.bridge.hook import TemporalHook
    from interlock.bridge.operators import AgentWorkflowOperator, TemporalSignalOperator, TemporalWorkflowOperator
    from interlock.bridge.sensor import TemporalWorkflowSensor

__all__ = [
    "AgentWorkflowOperator",
    "TemporalHook",
    "TemporalSignalOperator",
    "TemporalWorkflowOperator",
    "TemporalWorkflowSensor",
    "agent_workflow_task",
    "approvals_dag",
]

_PLACES = {
    "AgentWorkflowOperator": "operators",
    "TemporalHook": "hook",
    "TemporalSignalOperator": "operators",
    "TemporalWorkflowOperator": "operators",
    "TemporalWorkflowSensor": "sensor",
    "agent_workflow_task": "decorator",
    "approvals_dag": "approvals",
}


def __getattr__(name: str) -> Any:
    # Airflow loads this package in every one of its processes to read `provider`; most need nothing else of it.
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
