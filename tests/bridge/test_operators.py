"""What the operators are to Airflow."""

from typing import Any

import pytest
from airflow.sdk import BaseOperator
from airflow.serialization.definitions.baseoperator import SerializedBaseOperator

from interlock.bridge import (
    AgentWorkflowOperator,
    TemporalSignalOperator,
    TemporalWorkflowOperator,
    TemporalWorkflowSensor,
)


@pytest.mark.parametrize(
    "operator", [AgentWorkflowOperator, TemporalWorkflowOperator, TemporalSignalOperator, TemporalWorkflowSensor]
)
def test_no_argument_hides_what_the_scheduler_needs(operator: Any) -> None:
    """A templated field is set on the scheduler's copy of the task, whatever Airflow itself means by the name."""
    scheduled = SerializedBaseOperator(task_id="any")
    assert not [name for name in operator.template_fields if hasattr(scheduled, name)]
    assert not [name for name in operator.template_fields if hasattr(BaseOperator, name)]
