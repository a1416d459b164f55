"""Airflow's public REST API, as the tests use it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import quote

import httpx

_ASKS = 30
_IS_BUSY = ("Database error", "Internal Server Error")  # In 3.2 it says no more than that.
ENDED = ("success", "failed", "skipped", "upstream_failed", "removed")


class AirflowAPI:
    """What one user can do. Raises httpx.HTTPStatusError, with what Airflow says as a note, when it is refused."""

    def __init__(self, http: httpx.AsyncClient, user: str) -> None:
        self._http = http
        self._user = user
        self._token = ""
        self.triggered: list[DagRun] = []  # What this one has started.

    @classmethod
    @asynccontextmanager
    async def connected(cls, url: str, user: str) -> AsyncIterator[Self]:
        """For the user, whose password is the name."""
        async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
            yield cls(http, user)

    def as_user(self, user: str) -> "AirflowAPI":
        """The same Airflow for another user."""
        return AirflowAPI(self._http, user)

    async def ask(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Ask for something below /api/v2, and return the answer's JSON; None without one."""
        headers = {"Authorization": f"Bearer {await self.token()}", "Accept": "application/json"}
        for _ in range(_ASKS):
            answer = await self._http.request(method, f"/api/v2{path}", json=body, params=query, headers=headers)
            # With SQLite Airflow's log of actions can wait for a request that waits for it, until one is given up.
            if answer.status_code != 500 or not any(words in answer.text for words in _IS_BUSY):
                break
            await asyncio.sleep(0.2)
        return _json(answer)

    async def token(self) -> str:
        """What Airflow knows the user by."""
        if not self._token:
            self._token = await self._log_in()
        return self._token

    async def health(self) -> dict[str, Any]:
        """How the scheduler, triggerer and so on are, and when each was last heard of. No user is needed."""
        health: dict[str, Any] = _json(await self._http.get("/api/v2/monitor/health"))
        return health

    async def serves_tasks(self) -> bool:
        """Whether the API that task processes use is there. It takes its time at the first question."""
        return (await self._http.get("/execution/health")).is_success

    async def providers(self) -> list[str]:
        """The names of the provider packages that are installed."""
        answer = await self.ask("GET", "/providers", limit=200)
        return [one["package_name"] for one in answer["providers"]]

    async def import_errors(self) -> dict[str, str]:
        """What stopped Dag files from being loaded, by file."""
        answer = await self.ask("GET", "/importErrors")
        return {one["filename"]: one["stack_trace"] for one in answer["import_errors"]}

    async def dags(self) -> list[str]:
        """The ids of the Dags."""
        answer = await self.ask("GET", "/dags", limit=200)
        return [one["dag_id"] for one in answer["dags"]]

    async def trigger(self, dag_id: str, conf: dict[str, Any] | None = None, *, run_id: str | None = None) -> "DagRun":
        """Start a run of the Dag. conf: in place of its params."""
        body = {"logical_date": None, "conf": conf or {}, "dag_run_id": run_id}
        answer = await self.ask("POST", f"/dags/{dag_id}/dagRuns", body)
        run = DagRun(self, dag_id, answer["dag_run_id"])
        self.triggered.append(run)
        return run

    async def asset_events(self, run: "DagRun") -> list[dict[str, Any]]:
        """What the tasks of a Dag run said of the assets that they made."""
        answer = await self.ask("GET", "/assets/events", source_dag_id=run.dag_id, source_run_id=run.id)
        events: list[dict[str, Any]] = answer["asset_events"]
        return events

    async def requests(self, dag_id: str = "~", **query: Any) -> list["Request"]:
        """The Required Actions that nobody has answered, of one Dag or of all."""
        path = f"/dags/{dag_id}/dagRuns/~/hitlDetails"
        answer = await self.ask("GET", path, response_received=False, limit=200, **query)
        return [Request(self, one) for one in answer["hitl_details"]]

    async def _log_in(self) -> str:
        body = {"username": self._user, "password": self._user}
        return str(_json(await self._http.post("/auth/token", json=body))["access_token"])


@dataclass(frozen=True)
class DagRun:
    """A run of a Dag."""

    api: AirflowAPI = field(repr=False)
    dag_id: str
    id: str

    @property
    def path(self) -> str:
        return f"/dags/{self.dag_id}/dagRuns/{quote(self.id, safe='')}"

    def task(self, task_id: str, map_index: int = -1) -> "Task":
        """One of its task instances."""
        return Task(self, task_id, map_index)

    async def state(self) -> str:
        answer = await self.api.ask("GET", self.path)
        return str(answer["state"])

    async def tasks(self) -> list[dict[str, Any]]:
        """Its task instances, as Airflow describes them."""
        answer = await self.api.ask("GET", f"{self.path}/taskInstances", limit=200)
        found: list[dict[str, Any]] = answer["task_instances"]
        return found

    async def until_ended(self, within_seconds: float = 60) -> str:
        """Wait until it has succeeded or failed, and say which."""
        deadline = asyncio.get_running_loop().time() + within_seconds
        while (state := await self.state()) not in ("success", "failed"):
            tasks = [(one["task_id"], one["map_index"], one["state"]) for one in await self.tasks()]
            assert asyncio.get_running_loop().time() < deadline, f"{self} is {state}: {tasks}"
            await asyncio.sleep(0.1)
        return state

    async def mark(self, state: str) -> None:
        """Set its state: success, failed or queued."""
        await self.api.ask("PATCH", self.path, {"state": state})


@dataclass(frozen=True)
class Task:
    """A task instance. map_index: -1 for one that is not mapped."""

    run: DagRun
    id: str
    map_index: int = -1

    @property
    def path(self) -> str:
        return f"{self.run.path}/taskInstances/{self.id}"

    async def info(self) -> dict[str, Any]:
        """What Airflow tells of it: state, try_number, map_index, trigger and more."""
        path = self.path if self.map_index == -1 else f"{self.path}/{self.map_index}"
        answer: dict[str, Any] = await self.run.api.ask("GET", path)
        return answer

    async def state(self) -> str:
        """Its state; `none` when it has not been scheduled."""
        return str((await self.info())["state"] or "none")

    async def until(self, *states: str, try_number: int = 0, within_seconds: float = 60) -> str:
        """Wait until it is in one of the states, in this try or a later one, and say which.

        Raises AssertionError, with the states it was in and its log, when it ends otherwise or takes longer.
        """
        seen: list[str] = []
        deadline = asyncio.get_running_loop().time() + within_seconds
        while True:
            try:
                info = await self.info()
            except httpx.HTTPStatusError as error:  # A mapped one is there once its map has been expanded.
                if error.response.status_code != 404 or asyncio.get_running_loop().time() > deadline:
                    raise
                info = {"state": None, "try_number": 0}
            state, current = str(info["state"] or "none"), int(info["try_number"])
            if seen[-1:] != [label := f"{state} (try {current})"]:
                seen.append(label)
            if state in states and current >= try_number:
                return state
            late = asyncio.get_running_loop().time() > deadline
            if late or (state in ENDED and current >= try_number):
                log = "\n".join(await self.log(current)) if current else ""
                raise AssertionError(f"{self} was {', '.join(seen)}, and not {' or '.join(states)}.\n{log}")
            await asyncio.sleep(0.05)

    async def xcom(self, key: str = "return_value") -> Any:
        """A value that it has pushed, as other tasks get it."""
        path = f"{self.path}/xcomEntries/{key}"
        answer = await self.run.api.ask("GET", path, map_index=self.map_index)
        return answer["value"]

    async def log(self, try_number: int = 1) -> list[str]:
        """The lines of a try's log: of its task process, and of its trigger. An error's type and text have one too."""
        path = f"{self.path}/logs/{try_number}"
        answer = await self.run.api.ask("GET", path, map_index=self.map_index, full_content=True)
        lines: list[str] = []
        for one in answer["content"]:
            if not isinstance(one, dict):
                lines.append(str(one))
                continue
            lines.append(str(one.get("event", one)))
            lines += [f"{error['exc_type']}: {error['exc_value']}" for error in one.get("error_detail") or ()]
        return lines

    async def tries(self) -> list[dict[str, Any]]:
        """Its tries, oldest first."""
        path = f"{self.path}/tries" if self.map_index == -1 else f"{self.path}/{self.map_index}/tries"
        answer = await self.run.api.ask("GET", path)
        found: list[dict[str, Any]] = answer["task_instances"]
        return found

    async def links(self) -> dict[str, str | None]:
        """Its extra links, by the text of their buttons."""
        answer = await self.run.api.ask("GET", f"{self.path}/links", map_index=self.map_index)
        links: dict[str, str | None] = answer["extra_links"]
        return links

    async def clear(self) -> None:
        """Have it run again."""
        one = self.id if self.map_index == -1 else [self.id, self.map_index]
        body = {"dry_run": False, "dag_run_id": self.run.id, "task_ids": [one], "only_failed": False}
        await self.run.api.ask("POST", f"/dags/{self.run.dag_id}/clearTaskInstances", body)

    async def mark(self, state: str) -> None:
        """Set its state: success, failed or skipped."""
        path = self.path if self.map_index == -1 else f"{self.path}/{self.map_index}"
        await self.run.api.ask("PATCH", path, {"new_state": state})

    async def request(self) -> "Request":
        """The Required Action that it shows. Raises httpx.HTTPStatusError (404) when there is none."""
        return Request(self.run.api, await self.run.api.ask("GET", f"{self.path}/{self.map_index}/hitlDetails"))


@dataclass(frozen=True)
class Request:
    """A Required Action. shown: as Airflow tells of it: subject, body, options, params, response_received and more."""

    api: AirflowAPI = field(repr=False)
    shown: dict[str, Any]

    @property
    def task(self) -> Task:
        """The task instance that asks."""
        one = self.shown["task_instance"]
        return Task(DagRun(self.api, one["dag_id"], one["dag_run_id"]), one["task_id"], one["map_index"])

    async def answer(
        self, *options: str, params: dict[str, Any] | None = None, by: AirflowAPI | None = None
    ) -> dict[str, Any]:
        """Choose from its options. by: another user."""
        chosen: Sequence[str] = options
        path = f"{self.task.path}/{self.task.map_index}/hitlDetails"
        answer: dict[str, Any] = await (by or self.api).ask(
            "PATCH", path, {"chosen_options": chosen, "params_input": params or {}}
        )
        return answer


def _json(answer: httpx.Response) -> Any:
    try:
        answer.raise_for_status()
    except httpx.HTTPStatusError as error:
        error.add_note(answer.text[:2_000])
        raise
    return answer.json() if answer.content else None
