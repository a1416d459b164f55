"""Agents written with pydantic-ai."""

from interlock.adapters.pydantic_ai._durable import Durable
from interlock.adapters.pydantic_ai._scope import idempotency_key

__all__ = ["Durable", "idempotency_key"]
