"""What the worker of the benchmark of the bridge serves."""

from bench.agents import make_agent
from interlock import Interlock
from interlock.adapters.pydantic_ai import Durable

app = Interlock([make_agent(Durable())])
