"""`interlock demo` as a person, a script and a model's provider see it: real server, worker process and database."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ANSWER = "Order A-1001 was refunded with 64.90. Order A-1002 was refunded with 38.50."
REFUNDS = [{"order_id": "A-1001", "amount": 64.9}, {"order_id": "A-1002", "amount": 38.5}]
CALLS = [
    "model turn 1",
    "get_order A-1001",
    "get_order A-1002",
    "model turn 2",
    "refund A-1001",
    "refund A-1002",
    "model turn 3",
]
WITHIN_SECONDS = 60


def test_two_demos_at_once_both_refund_both_orders_and_leave_nothing_running(tmp_path: Path) -> None:
    with started(tmp_path, "--yes") as seen, started(tmp_path, "--yes", "--json") as parsed:
        text, document = finished(seen), json.loads(finished(parsed))

    assert text.startswith("A script plays the model's part. Set OPENAI_API_KEY to talk to a model.\n")
    assert re.search(r"  http://127\.0\.0\.1:\d+/namespaces/default/workflows/demo-\S+\n", text)
    assert text.index("✓ get_order: order A-1001 (") < text.index("• approved by --yes: refund: order A-1001")
    assert text.index("• approved by --yes: refund: order A-1002") < text.index(
        "✓ refund: order A-1002, amount 38.50 ("
    )
    assert ANSWER in in_one_line(text)
    assert "Refunds in the database: A-1001 64.90, A-1002 38.50." in text
    assert re.search(r"tool +refund: order A-1001, amount 64\.90 +1 +\d+\.\d\d s", text)
    assert "Usage: 3 model calls, 4 tool calls," in text
    assert document["answer"] == ANSWER
    assert document["refunds"] == REFUNDS
    assert document["ui_url"].endswith(f"/namespaces/default/workflows/{document['workflow_id']}")
    assert len(databases(tmp_path)) == 2
    assert left_running(tmp_path) == []


@pytest.mark.parametrize("adapter", ["pydantic-ai", "openai-agents"])
def test_a_killed_worker_loses_nothing_and_repeats_nothing(tmp_path: Path, adapter: str) -> None:
    with started(tmp_path, "--yes", "--kill", "--json", "--adapter", adapter) as demo:
        document = json.loads(finished(demo))

    assert document["answer"] == ANSWER
    assert document["refunds"] == REFUNDS
    assert document["executions"] == dict.fromkeys(CALLS, 1)
    first, second = dict.fromkeys(worker for _, worker in executions(tmp_path))
    in_second = [name for name, worker in executions(tmp_path) if worker == second]
    assert first != second
    assert in_second == ["refund A-1002", "model turn 3"]
    assert left_running(tmp_path) == []


@pytest.mark.parametrize(("options", "advice"), [([], "--yes"), (["--json"], "--yes --json"), (["--kill"], "--yes")])
def test_with_nobody_to_ask_it_says_what_to_do_and_starts_nothing(
    tmp_path: Path, options: list[str], advice: str
) -> None:
    demo = subprocess.run(command(*options), **surroundings(tmp_path), capture_output=True, text=True, check=False)

    assert demo.returncode == 2
    assert demo.stdout == ""
    assert f"`interlock demo {advice}`" in demo.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_person_edits_one_refund_and_rejects_the_other(tmp_path: Path) -> None:
    with at_a_terminal(tmp_path) as terminal:
        request = terminal.reads("approve another amount [e]? ")
        assert re.search(r"tool +refund .*order +A-1001 .*amount +64\.90 .*asked by +support ", request, re.DOTALL)
        terminal.types("yes please")
        terminal.reads("Type a, r or e, and Enter.")
        terminal.types("e")
        terminal.reads("Which amount? ")
        terminal.types("-1")
        terminal.reads("The request stays open.")
        terminal.reads("approve another amount [e]? ")
        terminal.types("e")
        terminal.reads("Which amount? ")
        terminal.types("50")
        terminal.reads("✓ refund: order A-1001, amount 50.00 (")
        terminal.reads("approve another amount [e]? ")
        assert refunds(tmp_path) == [("A-1001", 5_000)]  # It ran at its own answer, while the other waits.
        terminal.types("r")
        terminal.reads("The model reads this: ")
        terminal.types("the parcel was found")
        end = in_one_line(terminal.reads("Press Enter to stop it and end. "))
        assert "Order A-1001 was refunded with 50.00, which a reviewer changed from 64.90." in end
        assert "The refund of 38.50 for order A-1002 was rejected: the parcel was found" in end
        terminal.types("")
        terminal.reads("To look at them again:")

        assert terminal.ends() == 0
    assert refunds(tmp_path) == [("A-1001", 5_000)]
    assert left_running(tmp_path) == []


def test_ctrl_c_while_a_question_is_open_stops_everything(tmp_path: Path) -> None:
    with at_a_terminal(tmp_path) as terminal:
        terminal.reads("approve another amount [e]? ")
        terminal.types("a")
        terminal.reads("• approved: refund: order A-1001, amount 64.90")
        terminal.reads("approve another amount [e]? ")
        assert len(left_running(tmp_path)) == (3 if Path("/proc").exists() else 0)  # The demo, its server, its worker.
        terminal.process.send_signal(signal.SIGINT)
        terminal.reads("Stopped. Nothing that the demo started is running any more.")

        assert terminal.ends() == 130
    assert refunds(tmp_path) == [("A-1001", 6_490)]
    assert left_running(tmp_path) == []


def test_with_a_key_it_talks_to_the_model_of_the_environment(tmp_path: Path) -> None:
    with provider(replies=[lookups, refund_calls, last_words]) as (url, asked):
        model = {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": url, "INTERLOCK_DEMO_MODEL": "local-model"}
        with started(tmp_path, "--yes", "--json", **model) as demo:
            document = json.loads(finished(demo))

    assert document["answer"] == "Refunded: A-1001 with 64.9, A-1002 with 38.5."
    assert document["refunds"] == REFUNDS
    assert document["executions"] == dict.fromkeys(CALLS, 1)
    assert [request["model"] for request in asked] == ["local-model"] * 3
    assert {tool["function"]["name"] for tool in asked[0]["tools"]} == {"get_order", "refund"}


def test_a_rejected_key_ends_the_demo_with_the_providers_words(tmp_path: Path) -> None:
    with provider(replies=[]) as (url, _), started(tmp_path, "--yes", OPENAI_API_KEY="sk", OPENAI_BASE_URL=url) as demo:
        out, err = demo.communicate(timeout=WITHIN_SECONDS)

    assert demo.returncode == 1
    assert out.startswith("The agent talks to the model gpt-5.6-luna at OPENAI_BASE_URL.\n")
    assert "no such key" in err
    assert left_running(tmp_path) == []


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "interlock", "demo", *options]


def surroundings(folder: Path, **variables: str) -> dict[str, Any]:
    ours = ("OPENAI_", "INTERLOCK_", "TEMPORAL_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env = {**inherited, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "TERM": "xterm", **variables}
    return {"cwd": folder, "env": env, "stdin": subprocess.DEVNULL, "timeout": WITHIN_SECONDS}


@contextmanager
def started(folder: Path, *options: str, **variables: str) -> Iterator["subprocess.Popen[str]"]:
    around = surroundings(folder, **variables)
    del around["timeout"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command(*options), **around, **pipes) as process:
        try:
            yield process
        finally:
            process.terminate()  # It stops what it started, also when the test has failed.


def finished(demo: "subprocess.Popen[str]") -> str:
    out, err = demo.communicate(timeout=WITHIN_SECONDS)
    assert (demo.returncode, err) == (0, "")
    return out


class Terminal:
    """A person at the demo's terminal."""

    def __init__(self, process: "subprocess.Popen[bytes]", device: int) -> None:
        self.process = process
        self._device = device
        self._unread = ""

    def reads(self, words: str) -> str:
        """Wait until the words appear, and return everything new up to their end, without colours and movements."""
        deadline = time.monotonic() + WITHIN_SECONDS
        while words not in self._unread:
            assert time.monotonic() < deadline, f"{words!r} is not in {self._unread!r}"
            if select.select([self._device], [], [], 0.2)[0]:
                self._unread += self._shown()
        text, self._unread = self._unread.split(words, 1)
        return text + words

    def types(self, line: str) -> None:
        """Type a line and press Enter."""
        os.write(self._device, f"{line}\n".encode())

    def ends(self) -> int:
        """Wait for the demo's end and return its exit status."""
        while self.process.poll() is None:
            if select.select([self._device], [], [], 0.2)[0]:
                self._shown()
        return self.process.returncode

    def _shown(self) -> str:
        try:
            text = os.read(self._device, 65_536).decode(errors="replace")
        except OSError:  # Nobody holds the other side any more.
            return ""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")


@contextmanager
def at_a_terminal(folder: Path, *options: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    around = {**surroundings(folder), "stdin": theirs, "stdout": theirs, "stderr": theirs}
    del around["timeout"]
    with subprocess.Popen(command(*options), **around) as process:
        os.close(theirs)
        try:
            yield Terminal(process, ours)
        finally:
            process.terminate()
            process.wait(WITHIN_SECONDS)
            os.close(ours)


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def databases(folder: Path) -> list[Path]:
    return list(folder.glob(".interlock/demo/*/orders.db"))


def refunds(folder: Path) -> list[tuple[str, int]]:
    return rows(folder, "select order_id, amount_cents from refunds order by order_id")


def executions(folder: Path) -> list[tuple[str, int]]:
    return rows(folder, "select name, worker from executions order by id")


def rows(folder: Path, query: str) -> list[Any]:
    (path,) = databases(folder)
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


def left_running(folder: Path) -> list[str]:
    """The command lines of processes that work in this folder, where the system tells."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder:
                found.append((process / "cmdline").read_text())
        except OSError:  # It has just ended, or is not ours to look at.
            continue
    return [line for line in found if line]


Reply = Callable[[list[dict[str, Any]]], dict[str, Any]]


@contextmanager
def provider(replies: Sequence[Reply]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An OpenAI-compatible server. replies: made from the messages of each request, by turn; then it knows no key."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            turn = sum(message["role"] == "assistant" for message in request["messages"])
            if self.path != "/v1/chat/completions" or turn >= len(replies):
                return self._send(401, {"error": {"message": "no such key", "code": "invalid_api_key"}})
            asked.append(request)
            self._send(200, completion(request["model"], replies[turn](request["messages"])))

        def _send(self, status: int, document: dict[str, Any]) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1", asked
        finally:
            server.shutdown()


def completion(model: str, message: dict[str, Any]) -> dict[str, Any]:
    ended = "tool_calls" if "tool_calls" in message else "stop"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_780_000_000,
        "model": model,
        "choices": [{"index": 0, "finish_reason": ended, "message": {"role": "assistant", **message}}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }


def lookups(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return calls("get_order", [{"order": order} for order in ("A-1001", "A-1002")])


def refund_calls(messages: list[dict[str, Any]]) -> dict[str, Any]:
    found = [json.loads(message["content"]) for message in messages if message["role"] == "tool"]
    return calls("refund", [{"order": order["order_id"], "amount": order["amount"]} for order in found])


def last_words(messages: list[dict[str, Any]]) -> dict[str, Any]:
    paid = [json.loads(message["content"]) for message in messages if message["role"] == "tool"][2:]
    told = ", ".join(f"{one['order_id']} with {one['amount']}" for one in paid)
    return {"content": f"Refunded: {told}."}


def calls(tool: str, arguments: Sequence[dict[str, Any]]) -> dict[str, Any]:
    made = [
        {"id": f"call_{tool}_{index}", "type": "function", "function": {"name": tool, "arguments": json.dumps(one)}}
        for index, one in enumerate(arguments)
    ]
    return {"content": None, "tool_calls": made}
