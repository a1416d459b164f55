"""Two bare activities for each step: what Temporal itself takes. No framework is loaded, so its sandbox is light."""

from datetime import timedelta

from temporalio import activity, workflow

from bench.payload import text


@activity.defn
async def bare(key: str) -> str:
    return text(key)


@workflow.defn
class BareWorkflow:
    """Activities in sequence, and nothing else."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        for number in range(2 * int(prompt.partition("*")[2])):
            await workflow.execute_activity(bare, f"item-{number}", start_to_close_timeout=timedelta(seconds=60))
        return "done"
