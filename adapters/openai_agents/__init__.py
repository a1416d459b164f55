"""Agents written with the OpenAI Agents SDK."""

from interlock.adapters.openai_agents._marks import idempotency_key, idempotent, progress

__all__ = ["idempotency_key", "idempotent", "progress"]
