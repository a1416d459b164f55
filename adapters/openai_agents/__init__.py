"""Agents written with the OpenAI Agents SDK."""

from interlock.adapters.openai_agents._marks import approval, idempotency_key, idempotent, progress

__all__ = ["approval", "idempotency_key", "idempotent", "progress"]
