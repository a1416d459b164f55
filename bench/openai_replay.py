"""Replays one history: `python -m bench.openai_replay KIND FILE`. For each line that it reads it replays the history
again, and writes how many milliseconds that took, by the clock and of processor time."""

import asyncio
import os
import sys
import time
from pathlib import Path

from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner


def _interlock() -> Replayer:
    from bench.child import openai_app
    from interlock.worker import make_replayer

    return make_replayer(openai_app())


def _plain(sandboxed: bool) -> Replayer:
    from bench.openai_plain import PlainOpenAIWorkflow, plugin

    if sandboxed:
        return Replayer(workflows=[PlainOpenAIWorkflow], plugins=[plugin()])
    runner = UnsandboxedWorkflowRunner()
    return Replayer(workflows=[PlainOpenAIWorkflow], plugins=[plugin()], workflow_runner=runner)


async def _main(kind: str, history: WorkflowHistory) -> None:
    replayer = _interlock() if kind == "interlock-openai" else _plain(kind == "openai")
    for _ in sys.stdin:
        began, used = time.perf_counter(), time.process_time()
        await replayer.replay_workflow(history)
        print((time.perf_counter() - began) * 1_000, (time.process_time() - used) * 1_000, flush=True)


if __name__ == "__main__":
    code = 1
    try:
        kind, path = sys.argv[1:]
        asyncio.run(_main(kind, WorkflowHistory.from_json(kind, Path(path).read_text())))
        code = 0
    finally:
        sys.stdout.flush()
        os._exit(code)
