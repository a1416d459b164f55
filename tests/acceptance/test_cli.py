"""The installed program against a real server: what people type, what they see, and what scripts get."""

import asyncio
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest

from interlock import Client, testing
from interlock.cli import main
from interlock.contracts import names
from interlock.contracts.payloads import ApprovalRequest
from interlock.server import EmbeddedServer, free_port, temporal_binary

T = TypeVar("T")

SUPPORT = '''
from pathlib import Path

from pydantic_ai import Agent, Tool
from pydantic_ai.exceptions import CallDeferred, UserError
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from interlock import Interlock
from interlock.adapters.pydantic_ai import Durable


def model(messages, info):
    """Does what the prompt says in JSON: calls a tool with its arguments, then repeats what came back."""
    import json

    if messages[0].parts[-1].content == "fail":
        raise UserError("the model is broken")
    if messages[0].parts[-1].content == "stumble":
        raise ValueError("the model is broken" + "." * 9_000)  # More than the server keeps of it.
    if len(messages) == 1:
        calls = json.loads(messages[0].parts[-1].content)
        return ModelResponse(parts=[ToolCallPart(tool, arguments) for tool, arguments in calls])
    return ModelResponse(parts=[TextPart("; ".join(str(part.content) for part in messages[-1].parts))])


def refund(order: str, amount: float) -> str:
    """Pay an order back."""
    return f"refunded {order} {amount}"


def ship(order: str) -> str:
    """Ask the warehouse."""
    raise CallDeferred


def send(number: int) -> str:
    """Post a letter, when the post office is open."""
    if not Path("open").exists():
        raise UserError("the post office is closed")
    return f"sent {number}"


def wire(amount: float) -> str:
    """Wire money, over a line that breaks after the order is placed."""
    with Path("wired").open("a") as orders:
        orders.write(f"{amount}\\n")
    if not Path("line").exists():
        raise ConnectionError("the line is down")
    return f"wired {amount}"


def lead_model(messages, info):
    if len(messages) == 1:
        return ModelResponse(parts=[ToolCallPart("ask_support", {"what": messages[0].parts[-1].content})])
    return ModelResponse(parts=[TextPart(messages[-1].parts[0].content)])


async def write(messages, info):
    import asyncio

    for word in "The order is on its way to you, token=abc123456 opens the box.".split(" "):
        yield f"{word} "
        await asyncio.sleep(0.1)


async def ask_support(what: str) -> str:
    """Let support do it."""
    return (await support.run(what)).output


tools = [Tool(refund, requires_approval=True), ship, send, Tool(wire, requires_approval=True)]
support = Agent(FunctionModel(model), name="support", tools=tools, capabilities=[Durable()])
lead = Agent(FunctionModel(lead_model), name="lead", tools=[ask_support], capabilities=[Durable()])
writer = Agent(FunctionModel(stream_function=write), name="writer", capabilities=[Durable()])
app = Interlock([support, lead, writer])
'''

AT_ONCE = {"INTERLOCK_STUCK_SECONDS": "0"}
"""A run whose step fails for good ends at once, except in the tests that are about stuck runs."""

SEND = json.dumps([["send", {"number": 2}]])
WIRE = json.dumps([["wire", {"amount": 5.0}]])
REFUND = json.dumps([["refund", {"order": "A-1", "amount": 42.0}]])
TWO_REFUNDS = json.dumps([["refund", {"order": "A-1", "amount": 42.0}], ["refund", {"order": "A-2", "amount": 9.0}]])
SHIP = json.dumps([["ship", {"order": "A-1"}]])


@dataclass(frozen=True)
class Said:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line that says what went wrong."""
        (found,) = (row for row in self.err.splitlines() if row.startswith("error: "))
        assert "Traceback" not in self.err
        return found


@dataclass(frozen=True)
class Program:
    """The program, as somebody uses it in a folder.

    Called, it runs a command in this process, which saves a second each time; `process` and `running` start it as the
    installed program is started.
    """

    folder: Path
    environment: dict[str, str]

    def __call__(self, *arguments: str, status: int = 0) -> Said:
        out, err = io.StringIO(), io.StringIO()
        here = mock.patch.dict(os.environ, self.environment, clear=True), chdir(self.folder)
        with here[0], here[1], redirect_stdout(out), redirect_stderr(err):
            ended = main(arguments)
        return _checked(Said(ended, out.getvalue(), err.getvalue()), arguments, status)

    def process(self, *arguments: str, status: int = 0) -> Said:
        done = subprocess.run(
            [sys.executable, "-m", "interlock", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return _checked(Said(done.returncode, done.stdout, done.stderr), arguments, status)

    def json(self, *arguments: str, status: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", status=status).out)

    def at(self, address: str, **more: str) -> "Program":
        return replace(self, environment={**self.environment, "TEMPORAL_ADDRESS": address, **more})

    @contextmanager
    def running(self, *arguments: str) -> Iterator["Running"]:
        """The command at work in the background; it is killed when it is still there at the end."""
        number = len(list(self.folder.glob("*.err")))
        out, err = self.folder / f"{number}.out", self.folder / f"{number}.err"
        with out.open("wb") as to_out, err.open("wb") as to_err:
            process = subprocess.Popen(
                [sys.executable, "-m", "interlock", *arguments],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=to_out,
                stderr=to_err,
            )
        try:
            yield Running(process, out, err)
        finally:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Running:
    """A command at work."""

    process: "subprocess.Popen[bytes]"
    out_file: Path
    err_file: Path

    def says(self, text: str, *, times: int = 1) -> str:
        """Wait until it has said this on stderr, and return all it has said."""

        def said() -> str | None:
            so_far = self.err_file.read_text()
            assert self.process.poll() is None or so_far.count(text) >= times, f"It ended: {so_far}"
            return so_far if so_far.count(text) >= times else None

        return eventually(said)

    def result(self, *, after: signal.Signals | None = None) -> Said:
        if after is not None:
            self.process.send_signal(after)
        status = self.process.wait(30)
        return Said(status, self.out_file.read_text(), self.err_file.read_text())


def _checked(said: Said, arguments: Sequence[str], status: int) -> Said:
    assert said.status == status, f"{said.status} after {arguments}: {said.out}{said.err}"
    return said


def eventually(ask: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + 45
    while (answer := ask()) is None:
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)
    return answer


@pytest.fixture(scope="module")
def program(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The program in a folder with an app, with a worker for it that is stopped by SIGTERM at the end."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "support.py").write_text(SUPPORT)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "INTERLOCK_"))}
    queue = f"cli-{free_port()}"
    program = Program(folder, {**kept, "TEMPORAL_ADDRESS": server.address, "INTERLOCK_TASK_QUEUE": queue, **AT_ONCE})
    with program.running("worker", "run", "support:app") as worker:
        said = worker.says("Start a run with")
        assert "Worker for support, lead, writer" in said
        assert f"Task queue {queue}, server {server.address}, namespace default" in said
        assert "search attribute" not in said
        yield program
        assert worker.result(after=signal.SIGTERM).status == 0


def start(program: Program, prompt: str, agent: str = "support") -> str:
    return program("runs", "start", agent, "--prompt", prompt).out.strip()


def requests(program: Program, run: str, count: int = 1) -> list[dict[str, Any]]:
    """The run's open requests, by the list of all, as soon as there are so many, by their arguments."""

    def asked() -> list[dict[str, Any]] | None:
        found = [one for one in program.json("approvals", "list") if one["workflow_id"] == run]
        return sorted(found, key=lambda one: str(one["arguments"])) if len(found) == count else None

    return eventually(asked)


def test_an_approved_run_from_start_to_output(program: Program) -> None:
    run = program.process("runs", "start", "support", "--prompt", REFUND).out.strip()
    (request,) = requests(program, run)

    assert request["tool"] == "refund"
    assert request["agent_path"] == ["support"]
    assert request["arguments"] == {"order": "A-1", "amount": 42.0}
    assert set(request) >= {"workflow_id", "request_id", "agent_path", "tool", "arguments", "requested_at"}

    decided = program.process("approvals", "decide", run, request["request_id"], "--approve")
    assert decided.out == f"approved: refund, request 1 of run {run}\n"
    assert "Pay an order back." in decided.err
    assert 'order "A-1"' in decided.err

    assert program.process("runs", "wait", run).out == "refunded A-1 42.0\n"
    document = program.json("runs", "wait", run)
    assert list(document)[:6] == ["workflow_id", "agent", "status", "output", "usage", "error"]
    assert document["workflow_id"] == run
    assert document["status"] == "completed"
    assert document["output"] == "refunded A-1 42.0"
    assert document["usage"]["requests"] == 2
    assert document["error"] is None


def test_waiting_shows_each_step_and_the_command_that_decides(program: Program) -> None:
    with program.running("runs", "start", "support", "--prompt", REFUND, "--id", "shown", "--wait") as waiting:
        said = waiting.says("--approve")
        (command,) = (row.strip() for row in said.splitlines() if row.endswith("--approve"))
        assert "? refund: order A-1, amount 42.00  waits for a person" in said

        decided = program(*shlex.split(command.removeprefix("interlock ")), "--json")
        assert json.loads(decided.out)["outcome"] == "approved"
        ended = waiting.result()

    assert ended.status == 0
    assert ended.out == "refunded A-1 42.0\n"
    assert "✓ model" in ended.err
    assert "✓ refund (request 1) approved by" in ended.err
    assert "2 model calls, 1 tool call" in ended.err


def test_a_rejection_and_an_edit_reach_the_agent(program: Program) -> None:
    run = start(program, TWO_REFUNDS)
    first, second = (one["request_id"] for one in requests(program, run, 2))

    edit = '{"order": "A-1", "amount": 10}'
    edited = program("approvals", "decide", run, first, "--approve", "--arguments", edit)
    program("approvals", "decide", run, second, "--reject", "--reason", "It was delivered.")

    assert "amount 42.0 -> 10" in edited.err
    output = program("runs", "wait", run).out
    assert "refunded A-1 10.0" in output
    assert "It was delivered." in output


def test_answers_that_change_nothing_are_refused_and_the_request_stays_open(program: Program) -> None:
    run = start(program, TWO_REFUNDS)
    other = start(program, REFUND)
    first, second = (one["request_id"] for one in requests(program, run, 2))
    requests(program, other)
    decide = ("approvals", "decide", run)

    wrong = program(*decide, first, "--approve", "--arguments", '{"order": "A-1", "amount": "much"}', status=1)
    assert "amount: Input should be a valid number" in wrong.error
    assert "The request stays open." in wrong.error
    assert "open: 1, 2" in program(*decide, "7", "--approve", status=1).error
    assert "open: 1." in program("approvals", "decide", other, "2", "--approve", status=1).error
    assert "no run 'nowhere'" in program("approvals", "decide", "nowhere", "1", "--approve", status=1).error
    complete = ("tools", "complete", run)
    assert "waits for an approval" in program(*complete, "1", "--result", "1", status=1).error

    program(*decide, first, "--reject")
    assert "already rejected by" in program(*decide, first, "--approve", status=1).error
    program(*decide, second, "--approve")
    assert "refunded A-2 9.0" in program("runs", "wait", run).out
    assert "is completed: it waits for nothing" in program(*decide, "2", "--approve", status=1).error


async def test_an_answer_is_bound_to_the_request_that_was_shown(program: Program) -> None:
    queue = program.environment["INTERLOCK_TASK_QUEUE"]
    client = await Client.connect(program.environment["TEMPORAL_ADDRESS"], task_queue=queue)
    run = await client.start("support", json.dumps([*json.loads(REFUND), *json.loads(SHIP)]))

    async def both() -> list[ApprovalRequest] | None:
        found = await run.approvals()
        return found if len(found) == 2 else None

    asked: list[ApprovalRequest] = await testing.eventually(both)

    for request in asked:
        number = (run.id, request.request_id)
        if request.kind == "approval":
            program.process("approvals", "decide", *number, "--reject")
        else:
            program.process("tools", "complete", *number, "--result", "1")

    updates = [
        json.loads(
            event.workflow_execution_update_accepted_event_attributes.accepted_request.input.args.payloads[0].data
        )
        async for event in client.temporal.get_workflow_handle(run.id).fetch_history_events()
        if event.HasField("workflow_execution_update_accepted_event_attributes")
    ]
    assert [update["digest"] for update in updates] == [request.digest for request in asked]


@pytest.mark.parametrize(
    ("answer", "outcome", "output"),
    [
        (["--result", '{"sent": 3}'], "completed", "{'sent': 3}"),
        (["--error", "The warehouse burnt down."], "failed", "The warehouse burnt down."),
    ],
    ids=["result", "error"],
)
def test_a_call_that_ran_elsewhere_gets_its_result(
    program: Program, answer: list[str], outcome: str, output: str
) -> None:
    run = start(program, SHIP)
    (request,) = requests(program, run)
    assert request["kind"] == "tool_result"
    assert "waits for the result" in program("approvals", "decide", run, "1", "--approve", status=1).error

    completed = program.json("tools", "complete", run, request["call_id"], *answer)

    assert completed["outcome"] == outcome
    assert output in program("runs", "wait", run).out


def test_what_an_agent_of_a_tool_waits_for_is_shown_with_the_run(program: Program) -> None:
    with program.running("runs", "start", "lead", "--prompt", REFUND, "--id", "delegated", "--wait") as waiting:
        said = waiting.says("--approve")
        assert "lead / support" in said
        (command,) = (row.strip() for row in said.splitlines() if row.endswith("--approve"))
        assert program.json("runs", "show", "delegated")["requests"][0]["agent_path"] == ["lead", "support"]
        assert command in program("runs", "show", "delegated").out

        program(*shlex.split(command.removeprefix("interlock ")))
        assert waiting.result().out == "refunded A-1 42.0\n"


def test_a_run_that_ends_without_an_output_is_status_1_and_says_why(program: Program) -> None:
    failed = program("runs", "start", "support", "--prompt", "fail", "--id", "failed", "--wait", status=1)
    assert "Run 'failed' failed: UserError: the model is broken" in failed.error
    assert failed.out == ""

    document = program.json("runs", "wait", "failed", status=1)
    assert document["status"] == "failed"
    assert document["error"].startswith("UserError: the model is broken")
    assert "UserError: the model is broken" in program("runs", "show", "failed").out


def test_a_step_that_fails_and_is_tried_again_is_shown_with_its_error(program: Program) -> None:
    with program.running("runs", "start", "support", "--prompt", "stumble", "--id", "stumbles", "--wait") as waiting:
        assert "! model_request of support failed, attempt" in waiting.says("is tried again: the model is broken")
        assert program.json("runs", "show", "stumbles")["retried"][0]["error"].startswith("the model is broken")
        assert "is tried again" in program("runs", "show", "stumbles").out
        program("runs", "cancel", "stumbles")
        assert waiting.result().status == 1


def test_a_stuck_run_is_shown_and_retried(program: Program) -> None:
    patient = replace(program, environment={**program.environment, "INTERLOCK_STUCK_SECONDS": "600"})
    with patient.running("runs", "start", "support", "--prompt", SEND, "--id", "letter", "--wait") as waiting:
        said = waiting.says("interlock runs retry letter")
        assert "! send: number 2  is stuck (until " in said
        assert "UserError: the post office is closed" in said
        document = program.json("runs", "show", "letter")
        assert document["status"] == "stuck"
        assert [(one["label"], one["error_type"]) for one in document["stuck"]] == [("send: number 2", "UserError")]
        assert "interlock runs retry letter" in program("runs", "show", "letter").out
        refused = program("runs", "retry", "letter", "--new-limits", '{"request_limit": 9}', status=1)
        assert "New limits are no help" in refused.error
        assert "Step '7' is not stuck; stuck: 1" in program("runs", "retry", "letter", "--step", "7", status=1).error
        program("runs", "retry", "letter", "--new-limits", "9", status=2)

        (program.folder / "open").touch()
        assert program.json("runs", "retry", "letter", "--reason", "open again")["steps"] == ["1"]
        assert waiting.result().out == "sent 2\n"
    assert "waits for nothing any more" in program("runs", "retry", "letter", status=1).error


def test_a_budget_is_shown_used_up_and_extended(program: Program) -> None:
    start = ("runs", "start", "support", "--prompt", SHIP, "--id", "dear", "--wait", "--budget")
    with program.running(*start, "requests=1,tokens=9000") as waiting:
        waiting.says("interlock tools complete dear 1 --result JSON")
        program("tools", "complete", "dear", "1", "--result", '"shipped"')
        said = waiting.says("interlock approvals decide dear 2 --extend requests=1")
        assert "budget: requests 1  is asked for (support, request 2)" in said
        document = program.json("runs", "show", "dear")
        assert document["budget"]["limits"]["requests"] == document["budget"]["spent"]["requests"] == 1
        shown = program("runs", "show", "dear").out
        assert "██████████ 1 of 1 model calls" in shown
        assert "of 9,000 tokens" in shown
        assert "1 model call waits for it" in shown
        listed = program("approvals", "list")
        assert "budget (is used up; extend it?)" in listed.out
        assert "--extend requests=10" in listed.err
        wrong = program("approvals", "decide", "dear", "2", "--extend", "cost=1", status=1)
        assert "the budget has no limit cost_usd; it has requests, tokens. The request stays open." in wrong.error
        program("approvals", "decide", "dear", "2", "--extend", "money", status=2)
        decided = program("approvals", "decide", "dear", "2", "--extend", "requests=3")
        assert "The budget is used up: 1 of 1 model calls are used. Extend it?" in decided.err
        assert waiting.result().out == "shipped\n"
    assert "budget: 2 of 4 model calls" in program("journal", "dear").out
    assert program.json("journal", "dear")["budget"]["requests"] == 4


def test_an_output_is_sent_back_and_approved_with_a_change(program: Program) -> None:
    start = ("runs", "start", "support", "--prompt", SHIP, "--id", "seen", "--wait", "--review-rounds", "2")
    with program.running(*start) as waiting:
        waiting.says("interlock tools complete seen 1 --result JSON")
        program("tools", "complete", "seen", "1", "--result", '"shipped"')
        said = waiting.says("interlock approvals decide seen 2 --reject --reason TEXT")
        assert "review: output shipped  is proposed; is it the output? (support, request 2)" in said
        listed = program("approvals", "list")
        assert "review (is it the output?)" in listed.out
        assert "Send an output back with" in listed.err
        assert "Say what is to be changed" in program("approvals", "decide", "seen", "2", "--reject", status=1).error
        decided = program("approvals", "decide", "seen", "2", "--reject", "--reason", "Say when.")
        assert "Is this the run's output? It can be sent back once more." in decided.err
        waiting.says("interlock approvals decide seen 3 --approve")
        program("approvals", "decide", "seen", "3", "--reject", "--output", "No.", status=2)
        program(
            "approvals", "decide", "seen", "3", "--approve", "--output", "On Friday.", "--arguments", "{}", status=2
        )
        program("approvals", "decide", "seen", "3", "--approve", "--output", "On Friday.")
        assert waiting.result().out == "On Friday.\n"
    journal = program("journal", "seen").out
    assert "rejected by" in journal
    assert "with output On Friday. instead of Say when." in " ".join(journal.split())
    assert "--output is for a request about an output" in asked_with_an_output(program).error


def asked_with_an_output(program: Program) -> Said:
    """What is said to an output in place of the arguments of a call."""
    program("runs", "start", "support", "--prompt", REFUND, "--id", "call-1")
    assert program.json("runs", "show", "call-1")["requests"]
    return program("approvals", "decide", "call-1", "1", "--approve", "--output", "x", status=2)


@pytest.mark.parametrize("budget", ["requests=0", "money=3", "cost=nan", "", "requests=1e9", "tokens=-5"])
def test_a_budget_that_is_none_is_wrong_usage(program: Program, budget: str) -> None:
    said = program("runs", "start", "support", "--prompt", "hi", "--budget", budget, status=2)
    assert "--budget: " in said.error
    default = replace(program, environment={**program.environment, "INTERLOCK_BUDGET": budget or " ,"})
    assert "INTERLOCK_BUDGET: " in default("runs", "start", "support", "--prompt", "hi", status=1).error


def test_the_environment_gives_runs_a_budget(program: Program) -> None:
    poor = replace(program, environment={**program.environment, "INTERLOCK_BUDGET": "requests=1,when_used_up=end"})
    with poor.running("runs", "start", "support", "--prompt", SHIP, "--id", "poor", "--wait") as waiting:
        waiting.says("interlock tools complete poor 1 --result JSON")
        program("tools", "complete", "poor", "1", "--result", '"shipped"')
        ended = waiting.result()
    assert "BudgetUsedUpError: The budget of the run is used up: 1 of 1 model calls are used" in ended.error


def test_a_person_says_whether_a_call_happened(program: Program) -> None:
    run = start(program, WIRE)
    requests(program, run)
    program("approvals", "decide", run, "1", "--approve")

    def asked() -> dict[str, Any] | None:
        found = requests(program, run)[0]
        return found if found["kind"] == "outcome" else None

    question = eventually(asked)
    assert "ended with ConnectionError: the line is down" in question["question"]
    for flags, wrong in (
        (["--approve"], "asks whether an approved call happened"),
        (["--reject"], "--happened, --not-happened and --give-up"),
    ):
        assert wrong in program("approvals", "decide", run, "2", *flags, status=1).error
    program("approvals", "decide", run, "2", "--give-up", "--result", "1", status=2)
    (program.folder / "line").touch()
    assert program.json("approvals", "decide", run, "2", "--not-happened")["outcome"] == "not_happened"

    assert program("runs", "wait", run).out == "wired 5.0\n"
    assert (program.folder / "wired").read_text() == "5.0\n5.0\n"


def test_a_run_is_forked_after_its_effects_were_shown(program: Program) -> None:
    run = start(program, REFUND)
    requests(program, run)
    program("approvals", "decide", run, "1", "--approve")
    program("runs", "wait", run)

    unasked = program("runs", "fork", run, "--at", "3", status=2)
    assert "Takes over 2 completed steps" in unasked.err
    assert "refund: order A-1, amount 42.00" in unasked.err
    assert "say --yes" in unasked.error
    assert "has no step 9" in program("runs", "fork", run, "--at", "9", "--yes", status=1).error
    assert (
        "changes one thing"
        in program("runs", "fork", run, "--at", "3", "--message", "x", "--result", "1", status=2).error
    )
    forked = program("runs", "fork", run, "--at", "3", "--result", '"given"', "--id", "forked", "--yes", "--wait")
    assert forked.out == "given\n"
    steps = program.json("journal", "forked")["steps"]
    assert [(step["kind"], step["reused"]) for step in steps] == [("model", True), ("model", False)]
    first, other = program.json("journal", run)["run_id"], program.json("journal", "forked")["run_id"]
    at_the_end = ("runs", "fork", run, "--at", "5", "--yes", "--wait", "--run-id")
    assert "There is no run" in program(*at_the_end, other, status=1).error
    assert program(*at_the_end, first).out == program("runs", "wait", run).out


def test_a_cancelled_run_ends_and_cannot_be_cancelled_again(program: Program) -> None:
    run = start(program, REFUND)
    requests(program, run)

    assert program("runs", "cancel", run).out == f"{run}: cancelled\n"

    assert program.json("runs", "wait", run, status=1)["status"] == "cancelled"
    assert "cancelled already" in program("runs", "cancel", run, status=1).error
    assert "is cancelled" in program("approvals", "decide", run, "1", "--approve", status=1).error


def test_a_run_is_listed_shown_and_watched(program: Program) -> None:
    run = start(program, REFUND)
    requests(program, run)

    def listed() -> dict[str, Any] | None:
        (found,) = (one for one in program.json("runs", "list") if one["workflow_id"] == run)
        return found if found["status"] == "awaiting_approval" else None

    assert eventually(listed)["agent"] == "support"
    row = next(row for row in program("runs", "list").out.splitlines() if run in row)
    assert "support   awaiting approval" in row
    assert "refund" in program("approvals", "list").out
    page = program.json("runs", "show", run)
    assert page["status"] == "awaiting_approval"
    assert page["run_id"] == program.json("journal", run)["run_id"]
    assert page["requests"][0]["tool"] == "refund"
    assert [step["kind"] for step in page["steps"]] == ["model"]

    program("approvals", "decide", run, "1", "--approve")
    watched = program("runs", "watch", run)
    assert watched.out == "refunded A-1 42.0\n"
    assert "✓ refund: order A-1, amount 42.00" in watched.err
    shown = program("runs", "show", run).out
    assert "refund: order A-1, amount 42.00" in shown
    assert "refunded A-1 42.0" in shown
    assert "2 model calls, 1 tool call" in shown
    assert "refund (request 1) approved by" in shown
    (decision,) = program.json("runs", "show", run)["decisions"]
    assert decision["outcome"] == "approved"


def test_a_streamed_run_is_watched_from_any_of_its_events(program: Program) -> None:
    run = program("runs", "start", "writer", "--prompt", "Where is it?", "--stream").out.strip()
    events = [json.loads(row) for row in program("runs", "watch", run, "--json").out.splitlines()]

    assert [event["offset"] for event in events] == list(range(len(events)))
    assert len([event for event in events if event["kind"] == "text"]) > 2
    assert "".join(event["text"] for event in events if event["kind"] == "text") == (
        "The order is on its way to you, token=[masked] opens the box. "
    )
    assert (events[-1]["kind"], events[-1]["status"]) == ("run_ended", "completed")
    later = program("runs", "watch", run, "--json", "--from", "3").out.splitlines()
    assert [json.loads(row) for row in later] == events[3:]
    assert "--from goes with --json." in program("runs", "watch", run, "--from", "3", status=2).error
    watched = program("runs", "watch", run)
    assert watched.out.startswith("The order is on its way to you")
    assert "✓ model" in watched.err


def test_watching_the_events_of_a_run_that_fails_fails(program: Program) -> None:
    program("runs", "start", "support", "--prompt", "fail", "--id", "watched", "--wait", status=1)
    events = program("runs", "watch", "watched", "--json", status=1).out.splitlines()

    assert json.loads(events[-1])["status"] == "failed"
    assert "the model is broken" in json.loads(events[-1])["error"]


def test_a_journal_is_read_as_text_as_json_and_as_a_page(program: Program) -> None:
    run = start(program, REFUND)
    requests(program, run)
    program("approvals", "decide", run, "1", "--approve")
    program("runs", "wait", run)

    shown = program("journal", run).out
    assert "ask about refund: order A-1, amount 42.00" in shown
    assert "approved by" in shown
    assert "1 wait for a person" in shown
    both = program("journal", run, "--json", "--html", "journal.html")
    document = json.loads(both.out)
    assert [step["kind"] for step in document["steps"]] == ["model", "description", "tool", "model"]
    assert document["requests"][0]["executed"] == {"order": "A-1", "amount": 42.0}
    assert "The page is written: journal.html" in both.err
    assert f"<title>Journal of {run}</title>" in (program.folder / "journal.html").read_text()
    assert program("journal", run, "--html", "journal.html").out == ""
    full = program("journal", run, "--html", "/dev/full", status=1)
    assert full.error == "error: --html /dev/full cannot be written: No space left on device."


def test_the_runs_below_are_in_a_deep_journal(program: Program) -> None:
    run = start(program, json.dumps([]), agent="lead")
    program("runs", "wait", run)

    (link,) = program.json("journal", run, "--deep")["sub_runs"]
    assert link["journal"]["agent_path"] == ["lead", "support"]
    assert "2.1   model" in program("journal", run, "--deep").out


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (("nobody",), 1, "There is no run 'nobody'. See `interlock runs list`."),
        (("nobody", "--html", "."), 2, "--html . is a folder. Name the file to write, such as journal.html."),
        (("nobody", "--html", "not/there.html"), 2, "Make it first."),
    ],
)
def test_a_journal_that_cannot_be_had_is_told_clearly(
    program: Program, options: Sequence[str], status: int, said: str
) -> None:
    assert said in program("journal", *options, status=status).error


def test_text_from_a_model_cannot_act_on_the_terminal(program: Program) -> None:
    order = "A\x1b[2J\x1b]0;owned\x07\u202e [bold]x[/]"
    run = start(program, json.dumps([["refund", {"order": order, "amount": 1.0}]]))
    (request,) = requests(program, run)
    assert request["arguments"]["order"] == order

    shown = [
        program("approvals", "list"),
        program("runs", "show", run),
        program("approvals", "list", "--json"),
        program("approvals", "decide", run, "1", "--approve"),
        program("runs", "watch", run),
        program("runs", "show", run),
    ]
    for said in shown:
        assert not {"\x1b", "\x07", "\u202e"} & set(said.out + said.err)
    assert r"refunded A\x1b[2J" in shown[-1].out
    assert "[bold]x[/]" in shown[-1].out


def test_starting_twice_under_one_id_is_one_run_unless_the_input_differs(program: Program) -> None:
    begin = ("runs", "start", "support", "--id", "twice", "--prompt")
    assert program(*begin, REFUND).out == program(*begin, REFUND).out == "twice\n"

    assert "prompt differs" in program(*begin, SHIP, status=1).error

    program("runs", "cancel", "twice")
    assert program(*begin, SHIP, "--restart").out == "twice\n"
    assert requests(program, "twice")[0]["tool"] == "ship"


def test_an_unknown_agent_or_model_or_dependencies_of_the_wrong_form_end_the_start(program: Program) -> None:
    assert (
        "no agent 'nobody'; it has: lead, support"
        in program("runs", "start", "nobody", "--prompt", "x", status=1).error
    )
    document = program.json("runs", "start", "nobody", "--prompt", "x", status=1)
    assert document["status"] == "failed"
    assert document["error"].startswith("UnknownAgentError")
    assert "nomodel" in program("runs", "start", "support", "--prompt", "x", "--model", "nomodel", status=1).error


def test_the_answer_that_a_run_goes_on_from_is_given_to_it(program: Program) -> None:
    """This agent's framework takes none, and says so; what is given is in the run's input all the same."""
    goes_on = ("--previous-response-id", "resp_1", "--auto-previous-response-id")
    said = program("runs", "start", "support", "--prompt", "x", "--id", "goes-on", *goes_on, status=1)
    assert "take no previous_response_id" in said.error

    async def given() -> dict[str, Any]:
        client = await Client.connect(program.environment["TEMPORAL_ADDRESS"])
        (first, *_) = (await client.temporal.get_workflow_handle("goes-on").fetch_history()).events
        document: dict[str, Any] = json.loads(first.workflow_execution_started_event_attributes.input.payloads[0].data)
        return document

    document = asyncio.run(given())
    assert (document["previous_response_id"], document["auto_previous_response_id"]) == ("resp_1", True)


@pytest.mark.parametrize("arguments", [[], ["--wait"]], ids=["start", "wait"])
def test_without_a_worker_a_run_is_stored_and_its_id_is_not_lost(program: Program, arguments: list[str]) -> None:
    lonely = ("--task-queue", f"lonely-{free_port()}", *arguments)

    said = program("runs", "start", "support", "--prompt", REFUND, *lonely, status=1)

    run = said.out.strip()
    assert f"Run {run!r} is stored and begins when one starts" in said.error
    assert run in [one["workflow_id"] for one in program.json("runs", "list")]
    assert program.json("runs", "start", "support", "--prompt", "x", *lonely, status=1)["status"] == "running"
    assert program.json("runs", "show", run)["status"] == "running"
    assert "nothing was recorded" in program("approvals", "decide", run, "1", "--approve", status=1).error
    assert "nothing was recorded" in program("tools", "complete", run, "1", "--result", "1", status=1).error
    assert "ends when one starts" in program("runs", "cancel", run).err


@pytest.mark.parametrize(
    "arguments",
    [
        ["runs", "start", "support", "--prompt", "x"],
        ["runs", "wait", "run-1"],
        ["approvals", "list"],
        ["worker", "run", "support:app"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_without_a_server_the_line_says_which_and_how_to_start_one(program: Program, arguments: list[str]) -> None:
    said = program.at("127.0.0.1:1")(*arguments, status=1)

    assert "No Temporal server answers at 127.0.0.1:1. Start one with `interlock server start`" in said.error
    assert said.out == ""


@pytest.mark.parametrize(
    ("tls", "address", "message"),
    [
        ("maybe", None, "TEMPORAL_TLS is 'maybe'. It is true or false"),
        ("true", None, "over TLS. Start one with `interlock server start`, or set TEMPORAL_ADDRESS to where one is. "),
        ("false", "http://localhost:7233", "it is HOST:PORT without a scheme, such as localhost:7233"),
    ],
)
def test_a_server_that_is_addressed_wrongly_is_told_in_one_line(
    program: Program, tls: str, address: str | None, message: str
) -> None:
    wrong = program.at(address or program.environment["TEMPORAL_ADDRESS"], TEMPORAL_TLS=tls)
    said = wrong("runs", "list", status=1)

    assert message in said.error
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("verb", ["show", "wait", "watch", "cancel"])
def test_an_unknown_run_is_refused(program: Program, verb: str) -> None:
    assert "There is no run 'nowhere'" in program("runs", verb, "nowhere", status=1).error


def test_a_namespace_that_is_not_there_is_named(program: Program) -> None:
    elsewhere = program.at(program.environment["TEMPORAL_ADDRESS"], TEMPORAL_NAMESPACE="elsewhere")

    assert "Namespace elsewhere is not found" in elsewhere("runs", "list", status=1).error
    assert "Namespace elsewhere is not found" in elsewhere("runs", "show", "x", status=1).error
    server = elsewhere.json("doctor", status=1)["checks"][0]
    assert "not reachable" not in server["found"]
    assert "Namespace elsewhere is not found" in server["todo"]


def test_interrupting_a_wait_ends_it_without_a_traceback_and_the_run_goes_on(program: Program) -> None:
    run = start(program, REFUND)
    requests(program, run)
    with program.running("runs", "watch", run) as watching:
        watching.says("--approve")
        ended = watching.result(after=signal.SIGINT)

    assert ended.status == 130
    assert ended.out == ""
    assert "Traceback" not in ended.err
    assert f"The run goes on. Wait for it with: interlock runs wait {run}" in ended.err
    program("approvals", "decide", run, "1", "--approve")
    assert program("runs", "wait", run).out == "refunded A-1 42.0\n"


def test_the_console_script_is_the_same_program_and_survives_a_closed_pipe(program: Program) -> None:
    script = shlex.quote(str(Path(sys.executable).parent / "interlock"))
    done = subprocess.run(
        ["/bin/sh", "-c", f"{script} runs list --limit 1 --json; echo $?; {script} runs list | true"],
        env=program.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert json.loads(done.stdout.rpartition("]")[0] + "]")
    assert done.stdout.endswith("0\n")
    assert done.stderr == ""


def test_the_doctor_finds_nothing_wrong_and_lists_the_tools_of_an_app(program: Program) -> None:
    found = json.loads(program.process("doctor", "support:app", "--json").out)

    assert found["ok"] is True
    assert {check["name"] for check in found["checks"]} == {
        "server",
        "search attributes",
        "worker",
        "embedded server",
        "app",
    }
    assert found["agents"] == {
        "support": ["refund (waits for approval)", "ship", "send", "wire (waits for approval)"],
        "lead": ["ask_support"],
        "writer": [],
    }
    assert "ok   server" in program("doctor").out


def test_the_doctor_says_what_to_do_about_what_is_missing(program: Program) -> None:
    nowhere = program.at("127.0.0.1:1").json("doctor", "nowhere:app", status=1)
    assert [(check["name"], check["ok"]) for check in nowhere["checks"]] == [
        ("server", False),
        ("embedded server", True),
        ("app", False),
    ]
    assert "interlock server start" in nowhere["checks"][0]["todo"]
    assert "There is no module 'nowhere'" in nowhere["checks"][2]["todo"]

    (worker,) = (
        check for check in program.json("doctor", "--task-queue", "lonely", status=1)["checks"] if not check["ok"]
    )
    assert worker["name"] == "worker"
    assert "interlock worker run" in worker["todo"]


BIG = """
import authlib, cryptography, fastmcp, jsonschema, logfire_api, mcp, openai, requests, sqlite3, tiktoken  # noqa
import opentelemetry.sdk.trace, opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa

from pydantic_ai import Agent

from interlock import Interlock
from interlock.adapters.pydantic_ai import Durable

app = Interlock([Agent("test", name="big", capabilities=[Durable()])])
away = Interlock([Agent("anthropic:claude-opus-5", name="away", capabilities=[Durable()])])
"""


def test_the_doctor_loads_an_app_as_a_worker_does_and_makes_its_models(program: Program) -> None:
    (program.folder / "big.py").write_text(BIG)
    found = program.json("doctor", "big:app")
    assert [check for check in found["checks"] if not check["ok"]] == []

    (model,) = [check for check in program.json("doctor", "big:away", status=1)["checks"] if not check["ok"]]
    assert (model["name"], model["found"]) == ("model of away", "anthropic:claude-opus-5")
    assert 'pip install "pydantic-ai-slim[anthropic]"' in model["todo"]


SDK = """
from agents import Agent, HostedMCPTool, RunConfig, WebSearchTool, function_tool
from agents.mcp import MCPServerStdio

from interlock import Interlock


@function_tool
def look(order: str) -> str: ...


@function_tool(needs_approval=True)
def refund(order: str) -> str: ...


@function_tool(needs_approval=lambda ctx, arguments, call_id: True)
def send(order: str) -> str: ...


hosted = HostedMCPTool({"type": "mcp", "server_label": "shelf", "server_url": "http://127.0.0.1/mcp"})
tools = [look, refund, send, WebSearchTool(), hosted]
billing = Agent("billing", model="gpt-5.6-luna")
app = Interlock([Agent("desk", tools=tools, handoffs=[billing], mcp_servers=[MCPServerStdio({"command": "npx"})])])
away = Interlock([Agent("away", model="nowhere/model"), Agent("here", model="gpt-5.6-luna")])
other = Interlock([Agent("away", model="nowhere/model")], run_config=RunConfig(model="gpt-5.6-luna"))
"""


def test_the_doctor_knows_the_tools_and_the_models_of_agents_of_the_openai_sdk(program: Program) -> None:
    (program.folder / "sdk.py").write_text(SDK)
    program = Program(program.folder, {**program.environment, "OPENAI_API_KEY": "sk-test"})
    found = program.json("doctor", "sdk:app")
    assert found["agents"] == {
        "desk": [
            "look",
            "refund (waits for approval)",
            "send (may wait for approval)",
            "web_search",
            "(of shelf)",
            "(of stdio: npx)",
        ],
        "billing": [],
    }
    assert program.json("doctor", "sdk:other")["ok"] is True

    (model,) = [check for check in program.json("doctor", "sdk:away", status=1)["checks"] if not check["ok"]]
    assert (model["name"], model["found"]) == ("model of away", "nowhere/model")
    assert "Unknown prefix: nowhere" in model["todo"]


def test_the_doctor_names_the_open_runs_that_do_not_get_on(program: Program) -> None:
    waiting = start(program, REFUND)
    requests(program, waiting)
    lonely = ("--id", f"lonely-{free_port()}", "--task-queue", f"lonely-{free_port()}")
    program("runs", "start", "support", "--prompt", REFUND, *lonely, status=1)

    found = program.json("doctor", "--runs", status=1)
    assert found["ok"] is False
    assert all(check["ok"] for check in found["checks"])
    (trouble,) = [one for one in found["runs"] if one["workflow_id"] == lonely[1]]
    assert [(one["kind"], one["wrong"]) for one in trouble["findings"]] == [("no_worker", True)]
    assert waiting not in {one["workflow_id"] for one in found["runs"]}
    shown = program("doctor", "--runs", status=1).out
    assert f"No worker takes its tasks from task queue '{lonely[3]}'." in shown
    assert "Start one: interlock worker run MODULE:APP" in shown

    assert "runs" not in program.json("doctor")


def test_on_a_server_without_search_attributes_the_commands_that_add_them_are_named_and_work(
    program: Program,
) -> None:
    port = free_port()
    arguments = ["server", "start-dev", "--ip", "127.0.0.1", "--port", str(port), "--headless", "--log-level", "never"]
    bare = program.at(f"127.0.0.1:{port}")
    command = [temporal_binary(), *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=bare.environment) as server:
        try:
            eventually(lambda: True if "not reachable" not in bare("doctor", status=1).out else None)
            todos = [check["todo"] for check in bare.json("doctor", status=1)["checks"] if check["found"] == "missing"]
            assert len(todos) == len(names.SEARCH_ATTRIBUTES)
            with bare.running("worker", "run", "support:app") as worker:
                said = worker.says("search attribute", times=len(todos))
                assert all(todo in said for todo in todos)
                assert len(requests(bare, start(bare, REFUND))) == 1
                for todo in todos:
                    command = [temporal_binary(), *shlex.split(todo)[1:]]
                    subprocess.run(command, env=bare.environment, check=True, capture_output=True, timeout=30)
                assert bare.json("doctor")["ok"] is True
        finally:
            server.terminate()


def test_the_turns_of_a_session_and_who_waits_for_whom(program: Program) -> None:
    assert (
        "error: There is no session 'desk'. See `interlock sessions list`."
        in program("sessions", "show", "desk", status=1).err
    )
    turn = ("runs", "start", "support", "--session", "desk", "--prompt", REFUND)
    program(*turn, "--id", "desk-1")
    requests(program, "desk-1")
    program(*turn, "--id", "desk-2")

    def waits() -> str | None:
        shown = program("runs", "show", "desk-2").out
        return shown if "waits for its turn" in shown else None

    assert "… waits for its turn: It is the turn of run 'desk-1' in session 'desk'." in eventually(waits)
    assert program.json("runs", "show", "desk-2")["session"] == {"session_id": "desk", "state": "waiting", "turn": None}
    assert [
        (one["workflow_id"], one["began_at"] is not None) for one in program.json("sessions", "show", "desk")["open"]
    ] == [
        ("desk-1", True),
        ("desk-2", False),
    ]
    program("approvals", "decide", "desk-1", "1", "--approve")
    program("runs", "wait", "desk-2")

    assert "desk" in [one["session_id"] for one in program.json("sessions", "list")]
    shown = program("sessions", "show", "desk").out
    assert shown.startswith("desk  2 turns, 6 messages of pydantic-ai, ")
    assert [row.split()[:4] for row in shown.splitlines()[3:]] == [
        ["1", "desk-1", "support", "added"],
        ["2", "desk-2", "support", "added"],
    ]
    assert len(json.loads(program("sessions", "show", "desk", "--messages").out)) == 6


@pytest.mark.parametrize(("session", "status"), [("", 2), (" ", 2), ("a\tb", 1), ("x" * 201, 1)], ids=ascii)
def test_an_id_of_a_session_that_nobody_can_read_is_refused(program: Program, session: str, status: int) -> None:
    said = program("runs", "start", "support", "--prompt", SEND, "--session", session, status=status)

    assert "session" in said.error
