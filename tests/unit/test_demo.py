"""The demo's parts that need no server: the shop's rules, the scripted model, and what reaches the terminal."""

import asyncio
import io
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo
from pydantic_ai.models.openai import OpenAIChatModel
from rich.console import Console

from interlock.contracts.errors import MisconfiguredError
from interlock.demo import settings
from interlock.demo.agent import make_model, scripted
from interlock.demo.orders import Execution, Order, Orders, Refund, RefundRefusedError
from interlock.demo.report import show_executions
from interlock.demo.runner import Place, run_demo
from interlock.demo.screen import Screen
from interlock.demo.workers import Workers

UNUSED: Any = None


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    orders = Orders(tmp_path / "orders.db")
    orders.create()
    return orders


def test_the_shop_knows_the_orders_of_the_ticket(orders: Orders) -> None:
    assert orders.find("A-1001") == Order("A-1001", "Ines Duarte", "Stoneware teapot", 64.90, "delivered")
    assert orders.find("A-1002") == Order("A-1002", "Ines Duarte", "Walnut tray", 38.50, "lost in transit")
    assert orders.find("A-9999") is None


def test_a_refund_is_written_with_the_order_marked(orders: Orders) -> None:
    orders.refund("A-1001", 50, key="one")

    assert orders.refunds() == [Refund("A-1001", 50.0)]
    assert orders.find("A-1001") == Order("A-1001", "Ines Duarte", "Stoneware teapot", 64.90, "refunded")


@pytest.mark.parametrize(
    ("order", "amount", "reason"),
    [
        ("A-9999", 1, "There is no order 'A-9999'"),
        ("A-1001", 64.91, "cost 64.90; a refund of 64.91 is more"),
        ("A-1001", 0, "above zero"),
        ("A-1001", -5, "above zero"),
        ("A-1001", 1.005, "whole cents"),
        ("A-1002", 38.50, "was refunded already, with 30.00"),
    ],
)
def test_a_refund_that_the_shop_does_not_owe_is_refused(orders: Orders, order: str, amount: float, reason: str) -> None:
    orders.refund("A-1002", 30, key="two")

    with pytest.raises(RefundRefusedError, match=re.escape(reason)):
        orders.refund(order, amount, key="another")

    assert orders.refunds() == [Refund("A-1002", 30.0)]


def test_executions_are_counted_in_the_order_in_which_they_first_ran(orders: Orders) -> None:
    for name in ("model turn 1", "refund A-1", "model turn 1"):
        orders.record(name)

    assert [(one.name, one.times) for one in orders.executions()] == [("model turn 1", 2), ("refund A-1", 1)]


def test_the_script_asks_for_what_the_database_said() -> None:
    looked_up = returned("get_order", {"order_id": "A-1", "amount": 12.5}, "1")

    first, second = answer(), answer([looked_up])

    assert arguments(first) == [("get_order", {"order": "A-1"}), ("get_order", {"order": "A-2"})]
    assert arguments(second) == [("refund", {"order": "A-1", "amount": 12.5})]


def test_the_script_says_what_was_paid_changed_rejected_and_refused() -> None:
    asked = {number: {"order": f"A-{number}", "amount": 10.0} for number in ("1", "2", "3", "4", "5")}
    results = [
        returned("refund", {"order_id": "A-1", "amount": 10.0}, "1"),
        returned("refund", {"order_id": "A-2", "amount": 4.0}, "2"),
        returned("refund", "too late", "3", outcome="denied"),
        returned("refund", "Order A-4 was refunded already.", "4", outcome="failed"),
        returned("refund", {"order_id": "A-6", "amount": 10.0}, "5"),
    ]
    calls = [ToolCallPart("refund", arguments, tool_call_id=number) for number, arguments in asked.items()]

    (text,) = answer([returned("get_order", {}, "0")], results, calls=calls).parts

    assert isinstance(text, TextPart)
    assert text.content == (
        "Order A-1 was refunded with 10.00. "
        "Order A-2 was refunded with 4.00, which a reviewer changed from 10.00. "
        "The refund of 10.00 for order A-3 was rejected: too late. "
        "The refund of 10.00 for order A-4 failed: Order A-4 was refunded already. "
        "Order A-6 was refunded with 10.00, which a reviewer changed from order A-5."
    )


def test_a_key_chooses_the_model_and_a_name_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "")
    assert settings.openai_model() is None

    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    assert settings.openai_model() == "gpt-5.6-luna"

    monkeypatch.setenv("INTERLOCK_DEMO_MODEL", "another")
    model = make_model()
    assert isinstance(model, OpenAIChatModel)
    assert model.model_name == "another"


def test_text_of_a_model_cannot_act_on_the_terminal() -> None:
    screen, shown = made_screen()

    screen.say("\x1b[2J\r\x07[red]not red[/red] \u202eback")

    assert "\\x1b[2J\\r\\x07[red]not red[/red] \\u202eback" in shown.getvalue()
    assert not set("\x07\u202e") & set(shown.getvalue())


def test_a_command_to_be_copied_is_never_broken() -> None:
    screen, shown = made_screen()
    command = f"interlock server start --data {'a' * 300} --port 0"

    screen.say_copyable(command)

    assert command in shown.getvalue()


def test_a_line_of_the_screen_without_lines_is_not_kept() -> None:
    screen, shown = made_screen(lines=False)

    screen.say("nothing")

    assert shown.getvalue() == ""


@pytest.mark.parametrize(
    ("times", "workers", "verdict"),
    [
        (1, [7, 8], "Worker process 7 was killed, and each call ran once."),
        (2, [7, 8], "Worker process 7 was killed. More than once ran: refund A-1."),
        (1, [7], "The run never waited for a person, so there was no quiet moment to kill the worker in."),
    ],
)
def test_what_ran_twice_is_said(times: int, workers: list[int], verdict: str) -> None:
    screen, shown = made_screen()

    show_executions(screen, [Execution("refund A-1", times, (7,))], workers)

    assert verdict in shown.getvalue()


def test_two_places_made_at_once_are_two_folders(tmp_path: Path) -> None:
    assert Place.make(tmp_path).folder != Place.make(tmp_path).folder


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(MisconfiguredError, match=r"cannot make its folder .*file"):
        await run_demo(yes=True, kill=False, as_json=True, folder=tmp_path / "file")


async def test_a_worker_that_is_stopped_before_it_served_is_gone(tmp_path: Path) -> None:
    workers = Workers(tmp_path / "orders.db", tmp_path / "worker.log", "pydantic-ai")
    await workers.spawn()
    (pid,) = workers.pids

    await asyncio.wait_for(workers.stop(), 10)

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert workers.pid == 0


def made_screen(*, lines: bool = True) -> tuple[Screen, io.StringIO]:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, markup=False, highlight=False, emoji=False, width=200)
    return Screen(console, lines=lines), shown


def returned(tool: str, content: Any, call: str, **more: Any) -> ToolReturnPart:
    return ToolReturnPart(tool, content, tool_call_id=call, **more)


def answer(*results: Sequence[ToolReturnPart], calls: Sequence[ToolCallPart] = ()) -> ModelResponse:
    messages: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("Refund A-1 and A-2, please.")])]
    if calls:
        messages.append(ModelResponse(parts=list(calls)))
    messages += [ModelRequest(parts=list(parts)) for parts in results]
    info: AgentInfo = UNUSED
    return scripted(messages, info)


def arguments(response: ModelResponse) -> list[tuple[str, dict[str, Any]]]:
    return [(part.tool_name, part.args_as_dict()) for part in response.parts if isinstance(part, ToolCallPart)]


def test_a_request_that_was_paid_already_is_not_paid_again(orders: Orders) -> None:
    orders.refund("A-1001", 50, key="one")
    orders.refund("A-1001", 50, key="one")

    assert orders.refunds() == [Refund("A-1001", 50.0)]
