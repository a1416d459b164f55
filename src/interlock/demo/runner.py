"""Runs the demo: its folder, its server, its worker, and one run of the support agent from ticket to answer."""

import asyncio
import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from interlock.contracts.errors import MisconfiguredError
from interlock.demo import settings
from interlock.demo.orders import Orders
from interlock.demo.workers import Workers

if TYPE_CHECKING:
    from interlock.contracts.payloads import ApprovalRequest
    from interlock.demo.report import Outcome
    from interlock.demo.screen import Answer, Screen
    from interlock.server import EmbeddedServer

T = TypeVar("T")

FOLDER = Path(".interlock/demo")
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def run_demo(*, yes: bool, kill: bool, as_json: bool, adapter: str = "pydantic-ai", folder: Path = FOLDER) -> int:
    """Run the demo and return the exit status: 0 done, 2 when there is nobody to ask.

    yes: approve every refund. kill: end the worker with SIGKILL in the middle and start another. as_json: print one
    document instead of everything else. adapter: the framework of the agent. folder: gets a new folder for each demo,
    which stays.
    Raises InterlockError when the demo fails, KeyboardInterrupt when it is interrupted. In every case the server and
    the worker it has started are gone when it ends.
    """
    if problem := _nobody_to_ask(yes=yes, as_json=as_json):
        sys.stderr.write(f"error: {problem}\n")
        return 2
    if find_spec({"pydantic-ai": "pydantic_ai", "openai-agents": "agents"}[adapter]) is None:
        raise MisconfiguredError(f'The demo needs more: `pip install "interlock[{adapter},server]"`.')
    screen = _screen(as_json=as_json)
    demo = _Demo(Place.make(folder), screen, yes=yes, kill=kill, adapter=adapter)
    with _interruptible(screen):
        outcome = await demo.play()
    if as_json:
        sys.stdout.write(f"{json.dumps(outcome.document(), indent=2)}\n")
        sys.stdout.flush()
    return 0


@dataclass(frozen=True)
class Place:
    """The folder of one demo. Its name is the run's id."""

    folder: Path

    @classmethod
    def make(cls, parent: Path) -> Self:
        """Make a new folder. Raises MisconfiguredError when that cannot be."""
        folder = parent / f"demo-{datetime.now().astimezone():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise MisconfiguredError(
                f"The demo cannot make its folder {folder}: {error.strerror}. Run it in a folder that you can write to."
            ) from error
        return cls(folder)

    @property
    def orders(self) -> Orders:
        """The shop's database."""
        return Orders((self.folder / "orders.db").absolute())


class _Demo:
    def __init__(self, place: Place, screen: "Screen", *, yes: bool, kill: bool, adapter: str) -> None:
        self._place = place
        self._screen = screen
        self._yes = yes
        self._kill = kill
        self._workers = Workers(place.orders.path, place.folder / "worker.log", adapter)

    async def play(self) -> "Outcome":
        self._introduce()
        self._place.orders.create()
        with self._screen.live():
            async with self._started() as server:
                outcome = await self._run(server)
                self._conclude(outcome)
                await self._leave_time_to_look(outcome.ui_url)
        self._screen.say("The database and the run are kept. To look at them again:")
        self._screen.say_copyable(f"  {_program()} server start --data {self._place.folder}")
        self._screen.say_copyable(f"  {_program()} journal {self._place.folder.name} --html journal.html")
        return outcome

    def _introduce(self) -> None:
        model = settings.openai_model()
        if model is None:
            self._screen.say("A script plays the model's part. Set OPENAI_API_KEY to talk to a model.", style="bold")
        else:
            at = " at OPENAI_BASE_URL" if os.environ.get("OPENAI_BASE_URL") else ""
            self._screen.say(f"The agent talks to the model {model}{at}.", style="bold")
        self._screen.say(f"Ticket: {settings.TICKET}")

    @asynccontextmanager
    async def _started(self) -> "AsyncIterator[EmbeddedServer]":
        from interlock.server import EmbeddedServer

        self._screen.waits_for("the Temporal server and a worker process to start")
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._workers.stop)
            await self._workers.spawn()
            server = await EmbeddedServer.start(port=0, ui_port=0, data=self._place.folder)
            stack.push_async_callback(server.stop)
            stack.push_async_callback(self._workers.stop)  # Once more, so that it goes before its server does.
            await self._workers.serve(server.address)
            try:
                yield server
            finally:
                self._screen.waits_for("the server and the worker to stop")

    async def _run(self, server: "EmbeddedServer") -> "Outcome":
        from interlock.demo.connection import connect
        from interlock.demo.follow import Follower, Reviewer
        from interlock.demo.report import Outcome

        client = await connect(server.address)
        # A demo that fails is over: nobody comes back to retry it.
        run = await client.start(settings.AGENT, settings.TICKET, id=self._place.folder.name, stuck_seconds=0)
        url = server.run_url(run.id)
        self._show_where(server.address, url)
        follower = Follower(client, run, self._screen)
        reviewer = Reviewer(
            run,
            self._screen,
            follower,
            ask=_approve if self._yes else self._screen.ask,
            by="--yes" if self._yes else None,
            before_last=self._replace_worker if self._kill else None,
        )
        output = await _first(follower.follow(), follower.watch_attempts(), reviewer.review(), self._workers.watch())
        orders = self._place.orders
        return Outcome(output, await run.steps(), orders.refunds(), orders.executions(), run.id, url)

    def _show_where(self, address: str, url: str) -> None:
        self._screen.say("The run in the Temporal UI; its User Metadata says what it waits for:")
        self._screen.say_copyable(f"  {url}")
        if not self._yes:
            self._screen.say("You can decide here, or in another terminal that begins with:")
            self._screen.say_copyable(f"  export TEMPORAL_ADDRESS={address}; {_program()} approvals list")
        self._screen.say("")

    async def _replace_worker(self, request: "ApprovalRequest") -> None:
        killed = self._workers.pid
        await self._workers.kill()
        self._screen.say(
            f"Worker process {killed} was killed with SIGKILL; nobody is at work now.", mark="✗", style="red"
        )
        self._screen.waits_for("another worker process to start")
        await self._workers.replace()
        self._screen.say(f"Worker process {self._workers.pid} goes on where it ended.", mark="✓", style="green")

    def _conclude(self, outcome: "Outcome") -> None:
        from interlock.demo.report import show_executions, show_outcome

        show_outcome(self._screen, outcome, scripted=settings.openai_model() is None)
        if self._kill:
            show_executions(self._screen, outcome.executions, self._workers.pids)

    async def _leave_time_to_look(self, url: str) -> None:
        if not self._yes:
            self._screen.say("The server stays up for you to look at the run in the Temporal UI:")
            self._screen.say_copyable(f"  {url}")
            await self._screen.wait_for_enter("Press Enter to stop it and end. ")


async def _approve(request: "ApprovalRequest") -> "Answer":
    from interlock.demo.screen import Answer

    return Answer("approve")


async def _first(main: Coroutine[Any, Any, T], *others: Coroutine[Any, Any, Any]) -> T:
    """What `main` returns; the others run beside it and are cancelled at its end. The first error ends them all."""
    running = asyncio.ensure_future(main)
    tasks: set[asyncio.Future[Any]] = {running, *map(asyncio.ensure_future, others)}
    try:
        pending = tasks
        while not running.done():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        return running.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def _interruptible(screen: "Screen") -> Iterator[None]:
    """Turn the signals that end programs into one cancellation; more of them do not disturb the tidying up."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    came: list[bool] = []

    def interrupt() -> None:
        if not came:
            came.append(True)
            task.cancel()

    for number in _INTERRUPTS:
        loop.add_signal_handler(number, interrupt)
    try:
        yield
    except asyncio.CancelledError:
        if came:
            with suppress(OSError):  # The terminal may be what has gone.
                screen.say("Stopped. Nothing that the demo started is running any more.")
            raise KeyboardInterrupt from None
        raise
    finally:
        for number in _INTERRUPTS:
            loop.remove_signal_handler(number)


def _nobody_to_ask(*, yes: bool, as_json: bool) -> str | None:
    if yes:
        return None
    if as_json:
        return "`--json` leaves no room for questions. Let the demo approve by itself: `interlock demo --yes --json`."
    if not sys.stdin.isatty():
        return (
            "A person approves the refunds of this demo, and there is no terminal to ask on. Start it in a terminal, "
            "or let it approve by itself: `interlock demo --yes`, or `make demo ARGS=--yes`."
        )
    return None


def _screen(*, as_json: bool) -> "Screen":
    from rich.console import Console

    from interlock.demo.screen import Screen

    console = Console(stderr=as_json, markup=False, highlight=False, emoji=False)
    return Screen(console, lines=not as_json)


def _program() -> str:
    """How to call the command line from here: `make demo` leaves its environment off the path."""
    beside = Path(sys.executable).parent / "interlock"
    if shutil.which("interlock") or not beside.exists():
        return "interlock"
    return os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside)
