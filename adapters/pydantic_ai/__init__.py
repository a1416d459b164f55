"""Agents written with pydantic-ai."""

from interlock.adapters.pydantic_ai._durable import Durable

__all__ = ["Durable"]
