"""What Airflow is told about this package. Loaded in every Airflow process, so it imports nothing."""

from typing import Any

CONNECTION_TYPE = "temporal"
_HOOK = "interlock.bridge.hook.TemporalHook"


def get_provider_info() -> dict[str, Any]:
    """The provider's entry, in Airflow's own form."""
    return {
        "package-name": "interlock",
        "name": "Interlock",
        "description": "Runs agents and any other workflow on Temporal, and waits for them without holding a worker.",
        "hooks": [{"integration-name": "Temporal", "python-modules": ["interlock.bridge.hook"]}],
        "operators": [
            {
                "integration-name": "Temporal",
                "python-modules": ["interlock.bridge.operators", "interlock.bridge.approvals"],
            }
        ],
        "sensors": [{"integration-name": "Temporal", "python-modules": ["interlock.bridge.sensor"]}],
        "triggers": [
            {
                "integration-name": "Temporal",
                "python-modules": ["interlock.bridge.triggers", "interlock.bridge.awaiting"],
            }
        ],
        "integrations": [
            {"integration-name": "Temporal", "external-doc-url": "https://docs.temporal.io", "tags": ["service"]}
        ],
        "task-decorators": [{"class-name": "interlock.bridge.decorator.agent_workflow_task", "name": "agent_workflow"}],
        "extra-links": [
            "interlock.bridge.links.RunLink",
            "interlock.bridge.links.JournalLink",
            "interlock.bridge.links.ApprovalsLink",
        ],
        "connection-types": [
            {
                "hook-class-name": _HOOK,
                "hook-name": "Temporal",
                "connection-type": CONNECTION_TYPE,
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "login"],
                    "relabeling": {"host": "Address", "password": "API key"},
                    "placeholders": {"host": "localhost", "port": "7233"},
                },
                "conn-fields": _FIELDS,
            }
        ],
    }


def _text(label: str, description: str, *, secret: bool = False, multiline: bool = False) -> dict[str, Any]:
    kind: dict[str, Any] = {"type": ["string", "null"]}
    if secret:
        kind["format"] = "password"
    if multiline:
        kind["format"] = "multiline"
    return {"label": label, "description": description, "schema": kind}


_FIELDS = {
    "namespace": _text("Namespace", "Of Temporal. `default` when empty."),
    "task_queue": _text("Task queue", "Where the workers of the agents listen. `interlock` when empty."),
    "tls": {
        "label": "TLS",
        "description": "On when there is an API key or a certificate.",
        "schema": {"type": ["boolean", "null"]},
    },
    "tls_server_name": _text("TLS server name", "When it is not the address's."),
    "tls_server_ca": _text("TLS server CA", "The certificate authority of the server, as PEM.", multiline=True),
    "tls_client_cert": _text("TLS client certificate", "As PEM.", multiline=True),
    "tls_client_private_key": _text("TLS client key", "As PEM.", secret=True),
    "data_converter": _text(
        "Data converter",
        "The name of an entry point of the group `interlock.data_converters`: a Temporal DataConverter with the "
        "payload codec and the payload store of this namespace.",
    ),
    "ui_url": _text("Temporal UI", "Its address, for links, such as http://localhost:8233."),
}
