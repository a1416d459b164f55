"""What the person at the terminal sees and is asked."""

import asyncio
import math
import os
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from interlock.contracts.errors import RefusedError
from interlock.contracts.payloads import ApprovalRequest, Json

_REASON_LIMIT = 2_000


@dataclass(frozen=True)
class Answer:
    """What a person said to a request. arguments: to run instead of what was asked."""

    verdict: Literal["approve", "reject"]
    reason: str = ""
    arguments: dict[str, Json] | None = None


class Screen:
    """Lines that stay, and below them one live line that says what the run waits for.

    console: takes text without markup. lines: whether anything stays; without, only the live line is shown.
    """

    def __init__(self, console: Console, *, lines: bool) -> None:
        self._console = console
        self._lines = lines
        self._waits_for = ""
        self._since = time.monotonic()
        self._kept_back: list[RenderableType] | None = None
        self._spinner = Spinner("dots")
        self._live = Live(
            console=console,
            get_renderable=self._now,
            transient=True,
            refresh_per_second=8,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show the live line inside."""
        with self._live:
            yield

    def waits_for(self, what: str) -> None:
        """Say in the live line what everything waits for."""
        if what != self._waits_for:
            self._waits_for, self._since = what, time.monotonic()

    def say(self, text: str, *, mark: str = "", style: str = "") -> None:
        """Keep a line. mark: one character before it."""
        self.show(Text.assemble((f"{mark} ", style) if mark else "", (plain(text), "" if mark else style)))

    def say_copyable(self, text: str) -> None:
        """Keep a link or a command by itself. It is never broken, so that it can be clicked or copied."""
        self.show(Group(Text(plain(text), overflow="ignore", no_wrap=True)))  # By itself a text loses its settings.

    def show(self, what: RenderableType) -> None:
        """Keep something; while a question is open it is kept back until the answer is there."""
        if not self._lines:
            return
        if self._kept_back is not None:
            self._kept_back.append(what)
        else:
            self._console.print(what, crop=False)

    async def ask(self, request: ApprovalRequest) -> Answer:
        """Ask the person about a request. Cancelling this takes the question away.

        Raises RefusedError when the terminal's input ends.
        """
        with self._question():
            self._console.print(_request_panel(request))
            while True:
                choice = (await self._line("[a]pprove, [r]eject, approve another amount [e]? ")).lower()
                if choice in ("a", "approve"):
                    return Answer("approve")
                if choice in ("r", "reject"):
                    return Answer("reject", reason=await self._reason())
                if choice in ("e", "edit"):
                    return Answer("approve", arguments={**request.arguments, "amount": await self._amount()})
                self._console.print("Type a, r or e, and Enter.")

    async def wait_for_enter(self, prompt: str) -> None:
        """Wait until the person presses Enter, or the terminal's input ends."""
        with self._question():
            try:
                await self._line(prompt)
            except RefusedError:
                return

    async def _reason(self) -> str:
        while len(reason := await self._line("Why? The model reads this: ")) > _REASON_LIMIT:
            self._console.print(f"That is {len(reason)} characters; at most {_REASON_LIMIT} are read.")
        return reason

    async def _amount(self) -> float:
        while (amount := _number(await self._line("Which amount? "))) is None:
            self._console.print("Type an amount such as 12.50.")
        return amount

    async def _line(self, prompt: str) -> str:
        self._console.print(prompt, end="", style="bold")
        self._console.file.flush()
        return plain(await read_line())

    @contextmanager
    def _question(self) -> Iterator[None]:
        # A live line that repaints itself under a prompt would smear it, and so would lines printed meanwhile.
        was_live = self._live.is_started
        self._live.stop()
        self._kept_back = []
        # What was typed before anything was asked must not answer the question.
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
        try:
            yield
        except BaseException:
            self._console.print()  # Off the line of the question that nobody answered.
            raise
        finally:
            kept_back, self._kept_back = self._kept_back, None
            for what in kept_back:
                self.show(what)
            if was_live:
                self._live.start()

    def _now(self) -> RenderableType:
        waited = time.monotonic() - self._since
        text = plain(f"Waits for {self._waits_for}" + (f" ({waited:.0f} s)" if waited >= 1 else ""))
        line = Table.grid(padding=(0, 1))
        line.add_column(width=1)
        line.add_column(no_wrap=True, overflow="ellipsis")
        line.add_row(self._spinner, Text(text, style="cyan"))
        return line


async def read_line() -> str:
    """One line from the terminal, stripped. Unlike `input` it can be cancelled. Raises RefusedError at its end."""
    loop, terminal = asyncio.get_running_loop(), sys.stdin.fileno()
    typed = asyncio.Event()
    loop.add_reader(terminal, typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(terminal)
    try:
        data = os.read(terminal, 65_536)
    except OSError:  # The terminal has gone.
        data = b""
    if not data:
        raise RefusedError("The terminal's input ended while a request was open, so the demo gave the run up.")
    return data.decode(errors="replace").strip()


def plain(text: str) -> str:
    """The text in one line, with every character that could act on the terminal made visible."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _request_panel(request: ApprovalRequest) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("tool", Text(plain(request.tool)))
    if request.description:
        table.add_row("does", Text(plain(" ".join(request.description.split()))))
    for name, value in request.arguments.items():
        shown = f"{value:.2f}" if isinstance(value, float) and round(value, 2) == value else str(value)
        table.add_row(Text(plain(name)), Text(plain(shown)))
    table.add_row("asked by", Text(plain(" / ".join(request.agent_path))))
    return Panel(table, title=f"Request {request.request_id} waits for you", title_align="left", border_style="yellow")


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
