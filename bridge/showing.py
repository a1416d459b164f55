"""A request on a task instance of Airflow: shown, answered, and closed when it was settled elsewhere."""

import contextlib
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async

from interlock.bridge._airflow import whole
from interlock.bridge.asked import Asked
from interlock.bridge.form import REASON, Answer, BadAnswerError, closing_option, form_of, send
from interlock.bridge.settling import Settled, Standing, standing_of
from interlock.client import Client
from interlock.contracts.errors import MisconfiguredError, RefusedError
from interlock.contracts.payloads import ApprovalRequest, Receipt


def show(ti_id: Any, asked: Asked, request: ApprovalRequest, *, requested_by: str, links: Mapping[str, str]) -> None:
    """Show a request on the task instance whose code calls this. requested_by: who wanted its run."""
    from airflow.sdk.execution_time.hitl import upsert_hitl_detail

    form = form_of(request, asked, requested_by=requested_by, links=links)
    who: dict[str, Any] = {}
    if asked.assignees:
        who["assigned_users"] = [{"id": one, "name": one} for one in asked.assignees]
    upsert_hitl_detail(
        ti_id=ti_id, options=form.options, subject=form.subject, body=form.body, params=form.params, **who
    )


async def tell(client: Client, asked: Asked, answer: Answer) -> Standing | Receipt | str:
    """Pass an answer on. Returns the receipt, how the request was settled already, or why the answer is not taken."""
    standing = await standing_of(client, asked)
    if standing.request is None:
        return standing
    try:
        return await send(client.attach(asked.workflow_id), standing.request, answer, form_id=asked.form_id)
    except (BadAnswerError, RefusedError, MisconfiguredError) as error:
        standing = await standing_of(client, asked)
        return str(error) if standing.request is not None else standing


async def answered(ti_id: str) -> Answer | None:
    """What a person has answered on a task instance; None for nobody. For triggers."""
    from airflow.sdk.exceptions import AirflowRuntimeError
    from airflow.sdk.execution_time.hitl import get_hitl_detail_content_detail

    try:
        found = await whole(sync_to_async(get_hitl_detail_content_detail)(ti_id=UUID(ti_id)))
    except AirflowRuntimeError as error:
        if (error.error.detail or {}).get("status_code") == 404:  # Nothing is shown.
            return None
        raise
    user = found.responded_by_user
    return Answer.read(
        {
            "responded_by_user": {"id": user.id, "name": user.name} if user else None,
            "chosen_options": list(found.chosen_options or ()),
            "params_input": found.params_input,
            "responded_at": found.responded_at,
        }
    )


async def close(ti_id: str, settled: Settled) -> None:
    """Close what a task instance shows: only a trigger may. It keeps how it was settled, and no name of Airflow's."""
    from airflow.sdk.execution_time.hitl import update_hitl_detail_response

    with contextlib.suppress(Exception):  # A person was quicker: then the run tells them.
        await whole(
            sync_to_async(update_hitl_detail_response)(
                ti_id=UUID(ti_id),
                chosen_options=[closing_option(settled.outcome)],
                params_input={REASON: str(settled)},
            )
        )
