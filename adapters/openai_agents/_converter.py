"""How the payloads of runs of these agents are written and read."""

from typing import Any

from pydantic import BaseModel
from temporalio.api.common.v1 import Payload
from temporalio.openai_agents._temporal_openai_agents import OpenAIPayloadConverter


class InterlockOpenAIConverter(OpenAIPayloadConverter):
    """The integration's converter, which leaves out what the SDK's models do not set; Interlock's own records are
    written whole, as with every other framework."""

    def to_payloads(self, values: Any) -> list[Payload]:
        """See `PayloadConverter`."""
        return super().to_payloads([_whole(value) for value in values])


def _whole(value: Any) -> Any:
    if isinstance(value, BaseModel) and type(value).__module__.partition(".")[0] == "interlock":
        return value.model_dump(mode="json")
    return value
