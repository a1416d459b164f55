"""A real browser, for what people do with a mouse: headless Chromium, spoken to in its own protocol."""

import asyncio
import base64
import itertools
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from interlock.testing import eventually

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """Where the browser's program is; None when there is none."""
    return os.environ.get("BRIDGE_TESTS_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """The browser's one page."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self._session = ""

    @classmethod
    @asynccontextmanager
    async def opened(cls, program: str, folder: Path) -> AsyncIterator["Page"]:
        """A browser with an empty profile in the folder, for as long as the block takes."""
        process = await asyncio.create_subprocess_exec(
            program,
            "--headless=new",
            "--no-sandbox",  # The tests may be root, which it refuses otherwise.
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--no-proxy-server",
            "--remote-debugging-port=0",
            "--window-size=1280,1000",
            f"--user-data-dir={folder}",
            "about:blank",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            told = folder / "DevToolsActivePort"

            async def is_up() -> bool:
                return told.exists() and told.read_text().count("\n") > 0

            await eventually(is_up)
            port, path = told.read_text().split()
            async with connect(f"ws://127.0.0.1:{port}{path}", max_size=None, proxy=None) as connection:
                page = cls(connection)
                target = await page._ask("Target.createTarget", url="about:blank")
                attached = await page._ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
                page._session = attached["sessionId"]
                yield page
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # With the processes that it has started.
            await process.wait()

    async def set_cookie(self, url: str, name: str, value: str) -> None:
        await self._ask("Network.setCookie", url=url, name=name, value=value)

    async def go(self, url: str) -> None:
        await self._ask("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """What an expression of JavaScript is, in the page."""
        answer = await self._ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def text(self) -> str:
        return str(await self.run("document.body ? document.body.innerText : ''"))

    async def shows(self, text: str, within_seconds: float = 60) -> None:
        """Wait until the text is there to be read."""

        async def is_there() -> bool:
            return text in await self.text()

        try:
            await eventually(is_there, within_seconds=within_seconds, every_seconds=0.2)
        except AssertionError as error:
            error.add_note(f"{text!r} is not in:\n{await self.text()}")
            raise

    async def click(self, text: str, of: str = "button, a") -> None:
        """Click on what has this text, once it is there and can be."""
        find = (
            f"[...document.querySelectorAll({json.dumps(of)})].find(one => one.innerText.trim() === {json.dumps(text)})"
        )

        async def can_be_clicked() -> bool:
            return bool(await self.run(f"(one => !!one && !one.disabled)({find})"))

        await eventually(can_be_clicked, within_seconds=60, every_seconds=0.2)
        await self.run(f"{find}.click()")

    async def write(self, selector: str, text: str) -> None:
        """Write into a field, as keys do."""
        await self.run(f"(one => {{ one.focus(); one.select(); }})(document.querySelector({json.dumps(selector)}))")
        await self._ask("Input.insertText", text=text)

    async def screenshot(self, path: Path) -> None:
        answer = await self._ask("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))

    async def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        session = {"sessionId": self._session} if self._session else {}
        await self._connection.send(json.dumps({"id": number, "method": method, "params": params, **session}))
        async with asyncio.timeout(60):
            while True:
                answer = json.loads(await self._connection.recv())
                if answer.get("id") == number:  # The rest are the browser's own events.
                    assert "error" not in answer, answer["error"]
                    result: dict[str, Any] = answer["result"]
                    return result
