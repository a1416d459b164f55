"""Functions of the user's that are no tools: guardrails, hooks, predicates and the like."""


class recorded:  # noqa: N801
    @staticmethod
    def apply(made, agent): pass
    @staticmethod
    async def handoff(agent, one, ctx, arguments): await one.on_invoke_handoff(ctx, arguments)
    @staticmethod
    def enabled(agent, slot, value): return value
    @staticmethod
    def tool_guardrails(agent, tool, field): return getattr(tool, field)
    @staticmethod
    async def needs_approval(agent, tool, ctx, arguments):
        return await tool.needs_approval(ctx, arguments, ctx.tool_call_id)
