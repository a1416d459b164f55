"""Agents written with pydantic-ai."""

from interlock.adapters.pydantic_ai._durable import Durable
from interlock.adapters.pydantic_ai._scope import idempotency_key
from interlock.adapters.pydantic_ai._streamed import progress

__all__ = ["Durable", "idempotency_key", "progress"]
