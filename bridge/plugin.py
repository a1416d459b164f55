"""Airflow's plugin: the journal of a run as a page, for those who may read the Dag that has started it, and a listener
for tasks that are marked (`marks`).

All that the page uses of Airflow's API server is in this module. It is loaded in each of Airflow's processes, so
nothing is made before the first request comes.
"""

from html import escape
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from interlock.bridge import marks

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_TITLES = {
    400: "This is no address of a run",
    401: "You are not signed in",
    403: "You may not see this run",
    404: "There is no such run",
    503: "Temporal does not answer",
}


class _OnceNeeded:
    """An ASGI app that is made for the first request, and so only where requests come."""

    def __init__(self) -> None:
        self._app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._app is None:
            self._app = _make_app()
        await self._app(scope, receive, send)


class InterlockPlugin(AirflowPlugin):
    """Serves pages below /interlock, and ends runs with tasks that are marked."""

    name = "interlock"
    fastapi_apps = [{"name": "interlock", "app": _OnceNeeded(), "url_prefix": "/interlock"}]  # noqa: RUF012
    listeners = [marks]  # noqa: RUF012


def _make_app() -> Any:
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
    from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_access_view
    from fastapi import FastAPI, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import HTMLResponse
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from temporalio.service import RPCError

    from interlock._rpc import server_errors
    from interlock.bridge._airflow import BaseHook
    from interlock.bridge.errors import BadTaskError, TemporalUnavailableError
    from interlock.bridge.hook import TemporalHook
    from interlock.bridge.identity import Note
    from interlock.bridge.provider import CONNECTION_TYPE
    from interlock.contracts.errors import MisconfiguredError, RefusedError, UnavailableError
    from interlock.journal.html import page

    app = FastAPI(title="Interlock", openapi_url=None, docs_url=None, redoc_url=None)

    async def check_may_see(request: Request, user: Any, note: Note | None) -> None:
        check: Any = requires_access_view(AccessView.PLUGINS)
        if note is not None:
            check = requires_access_dag("GET", param_dag_id=note.dag_id)
        await run_in_threadpool(check, request, user)

    async def hook_of(conn_id: str) -> TemporalHook:
        try:
            found = await BaseHook.aget_connection(conn_id)
        except Exception as error:  # Each of Airflow's ways to keep them has an error of its own.
            raise HTTPException(404, f"Airflow has no connection {conn_id!r}.") from error
        # Another kind's address and password are nothing to be sent to, and nothing to be sent.
        if found.conn_type != CONNECTION_TYPE:
            raise HTTPException(404, f"The connection {conn_id!r} is none of type {CONNECTION_TYPE!r}.")
        return TemporalHook(conn_id)

    @app.get("/runs", response_class=HTMLResponse)
    async def run_page(
        request: Request, user: GetUserDep, connection: str, workflow_id: str, run_id: str = ""
    ) -> HTMLResponse:
        try:
            client = await (await hook_of(connection)).client()
            handle = client.temporal.get_workflow_handle(workflow_id, run_id=run_id or None)
            try:
                with server_errors(workflow_id, run_id=run_id):
                    note = Note.read(await (await handle.describe()).memo())
            except RefusedError:
                await check_may_see(request, user, None)  # Who may see none learns nothing of which there are.
                raise
            await check_may_see(request, user, note)
            return HTMLResponse(page(await client.journal(workflow_id, run_id=run_id or None)), headers=_HEADERS)
        except RefusedError as error:
            raise HTTPException(404, str(error)) from error
        except (
            BadTaskError,
            MisconfiguredError,
            RPCError,
            TemporalUnavailableError,
            UnavailableError,
        ) as error:
            raise HTTPException(503, str(error)) from error

    async def say(request: Request, error: HTTPException) -> HTMLResponse:
        return HTMLResponse(_page(error.status_code, str(error.detail)), error.status_code, _HEADERS)

    async def say_invalid(request: Request, error: RequestValidationError) -> HTMLResponse:
        names = ", ".join(str(one["loc"][-1]) for one in error.errors())
        return HTMLResponse(_page(400, f"Of connection, workflow_id and run_id: {names}."), 400, _HEADERS)

    app.add_exception_handler(HTTPException, say)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, say_invalid)  # type: ignore[arg-type]
    return app


def _page(status: int, text: str) -> str:
    title = _TITLES.get(status, "This page cannot be shown")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>'
        "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:40rem;margin:4rem auto;padding:0 1rem}"
        f"</style></head><body><h1>{title}</h1><p>{escape(text)}</p></body></html>\n"
    )
