"""What docker-compose.yml starts is pinned, out of reach from outside, and configured by names that somebody reads."""

import json
import mmap
import re
import shutil
import subprocess
from configparser import ConfigParser
from importlib.metadata import version
from pathlib import Path
from typing import Any

import airflow
import pytest
import yaml  # type: ignore[import-untyped]
from airflow.sdk import Connection
from temporalio.envconfig import ClientConfig

from interlock import Settings
from interlock.bridge.connection import read_settings
from interlock.cli import main
from interlock.server import temporal_binary
from tests.acceptance.compose_file import parse

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE = parse(TEXT)
SERVICES: dict[str, Any] = COMPOSE["services"]
ONCE = ("schema", "prepare", "airflow-migrate")
AIRFLOW = tuple(name for name in SERVICES if name.startswith("airflow-") and name != "airflow-postgresql")
OURS = ("prepare", "worker")
SETTINGS = {f"INTERLOCK_{name.upper()}": field for name, field in Settings.model_fields.items()}
# Read by OpenTelemetry, and by the demo's app.
OTHERS = {"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_SERVICE_NAME", "OPENAI_API_KEY"}


def default_of(value: str) -> str:
    """What a value is when .env says nothing: `${NAME:-default}`."""
    return re.sub(r"\$\{\w+(?::-([^}]*))?\}", lambda found: found[1] or "", value)


def seconds(duration: str) -> int:
    assert duration.endswith("s")
    return int(duration.removesuffix("s"))


@pytest.mark.parametrize("service", SERVICES)
def test_each_image_is_pinned(service: str) -> None:
    assert re.fullmatch(r"[a-z/-]+:\d+\.\d+(\.\d+)?", SERVICES[service]["image"])


def test_the_server_and_its_ui_are_the_ones_that_the_tests_run_against() -> None:
    said = subprocess.run([temporal_binary(), "--version"], capture_output=True, text=True, check=True).stdout
    server, ui = re.findall(r"(?:Server|UI) ([\d.]+)", said)

    assert SERVICES["temporal"]["image"] == f"temporalio/server:{server}"
    assert SERVICES["schema"]["image"] == f"temporalio/admin-tools:{server}"
    assert SERVICES["temporal-ui"]["image"] == f"temporalio/ui:{ui}"


@pytest.mark.parametrize("service", OURS)
def test_our_image_has_our_version_and_is_built_here(service: str) -> None:
    assert SERVICES[service]["image"] == f"interlock-worker:{version('interlock')}"
    assert SERVICES[service]["build"] == "."


@pytest.mark.parametrize("service", AIRFLOW)
def test_airflow_is_built_here_and_is_there_only_when_it_is_wanted(service: str) -> None:
    definition = SERVICES[service]
    assert definition["image"] == f"interlock-airflow:{version('interlock')}"
    assert definition["build"] == {"context": ".", "dockerfile": "Dockerfile.airflow"}
    assert definition["profiles"] == ["airflow"]
    assert definition["cap_drop"] == ["ALL"]


def test_airflows_configuration_has_only_options_that_airflow_knows() -> None:
    written = ConfigParser(interpolation=None)
    written.read_string(COMPOSE["configs"]["airflow"]["content"])
    known = yaml.safe_load((Path(airflow.__file__).parent / "config_templates/config.yml").read_text())
    # Of the auth manager, whose options are no part of the description.
    known["core"]["options"] |= {"simple_auth_manager_users": None, "simple_auth_manager_passwords_file": None}

    assert [
        f"{section}.{option}"
        for section in written.sections()
        for option in written[section]
        if option not in known[section]["options"]
    ] == []


@pytest.mark.parametrize("service", ["airflow-api-server", "airflow-scheduler", "airflow-triggerer"])
def test_airflow_finds_temporal(service: str) -> None:
    given = json.loads(default_of(SERVICES[service]["environment"]["AIRFLOW_CONN_TEMPORAL_DEFAULT"]))
    settings = read_settings(Connection(conn_id="temporal_default", **{**given, "extra": json.dumps(given["extra"])}))

    assert (settings.address, settings.namespace) == ("temporal:7233", "default")


@pytest.mark.parametrize("service", SERVICES)
def test_what_runs_on_is_watched_and_started_again(service: str) -> None:
    definition = SERVICES[service]
    assert definition["restart"] == ("on-failure:5" if service in ONCE else "unless-stopped")
    assert ("healthcheck" in definition) is (service not in ONCE)


@pytest.mark.parametrize("service", SERVICES)
def test_each_service_waits_until_what_it_needs_is_there(service: str) -> None:
    for needed, how in SERVICES[service].get("depends_on", {}).items():
        ended = "service_completed_successfully" if needed in ONCE else "service_healthy"
        assert how == {"condition": ended}
        assert needed in SERVICES


def test_ports_are_on_the_loopback_interface_and_the_database_has_none() -> None:
    ports = {name: service.get("ports", []) for name, service in SERVICES.items()}

    assert all(port.startswith("127.0.0.1:") for found in ports.values() for port in found)
    assert {name for name, found in ports.items() if found} == {"temporal", "temporal-ui", "airflow-api-server"}


def test_the_database_is_kept_in_a_named_volume() -> None:
    assert SERVICES["postgresql"]["volumes"] == ["postgresql:/var/lib/postgresql/data"]
    assert "postgresql" in COMPOSE["volumes"]


@pytest.mark.parametrize("service", OURS)
def test_our_containers_cannot_change_what_they_run(service: str) -> None:
    definition = SERVICES[service]
    assert definition["read_only"] == "true"
    assert definition["cap_drop"] == ["ALL"]
    assert definition["security_opt"] == ["no-new-privileges:true"]
    assert not [volume for volume in definition.get("volumes", []) if volume.partition(":")[2] == "/app"]


def test_the_worker_may_finish_its_calls_before_it_is_killed() -> None:
    worker = SERVICES["worker"]
    graceful = float(default_of(worker["environment"]["INTERLOCK_GRACEFUL_SHUTDOWN_SECONDS"]))

    assert seconds(default_of(worker["stop_grace_period"])) > graceful + 5  # In which spans are sent.
    assert worker["init"] == "true"  # Without it nothing passes the signal on.


@pytest.mark.parametrize("service", OURS)
def test_each_variable_of_ours_is_one_that_is_read(service: str) -> None:
    environment = SERVICES[service]["environment"]
    temporal = {name: value for name, value in environment.items() if name.startswith("TEMPORAL_")}
    assert environment.keys() - temporal.keys() - OTHERS <= SETTINGS.keys()
    read = ClientConfig.load_client_connect_config(
        override_env_vars={name: default_of(value) for name, value in temporal.items()}, disable_file=True
    )
    assert (read.get("target_host"), read.get("namespace")) == ("temporal:7233", "default")
    assert len(temporal) == 2


def test_the_worker_has_every_setting_with_its_own_default() -> None:
    given = {name: value for name, value in SERVICES["worker"]["environment"].items() if name in SETTINGS}
    assert given.keys() == SETTINGS.keys()
    given.pop("INTERLOCK_METRICS_ADDRESS")
    for name, value in given.items():
        assert value.startswith(f"${{{name}:-")
        field = name.removeprefix("INTERLOCK_").lower()
        assert getattr(Settings.read(**{field: default_of(value)}), field) == SETTINGS[name].default


def test_each_variable_of_the_server_is_one_that_its_configuration_reads() -> None:
    names = SERVICES["temporal"]["environment"]
    with Path(temporal_binary()).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as binary:
        unread = [name for name in names if binary.find(f'(env "{name}")'.encode()) < 0]

    assert unread == []


@pytest.mark.parametrize(
    "command",
    [SERVICES["prepare"]["command"], SERVICES["worker"]["command"], SERVICES["worker"]["healthcheck"]["test"][2:]],
    ids=" ".join,
)
def test_each_command_of_ours_exists(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command[:2], "--help"]) == 0
    said = capsys.readouterr().out
    assert f"interlock {' '.join(command[:2])} " in said
    assert all(word in said for word in command if word.startswith("--"))


def test_every_variable_of_the_file_is_explained_and_no_other_one_is() -> None:
    explained = re.findall(r"^#?([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE)

    assert sorted(explained) == sorted({*re.findall(r"\$\{(\w+)", TEXT)})


def test_no_secret_is_in_the_file_or_goes_to_the_builder() -> None:
    secrets = [
        value
        for service in SERVICES.values()
        for name, value in service.get("environment", {}).items()
        if re.search("PASSWORD|PWD|KEY|HEADERS", name)
    ]
    assert len(secrets) == 6
    assert all(re.fullmatch(r"\$\{\w+:(-|\?[^}]*)\}", secret) for secret in secrets)
    assert "POSTGRES_PASSWORD=\n" in (ROOT / ".env.example").read_text()
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()
    sent = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert not any(".env" in line for line in sent)
    assert "\n*\n" in (ROOT / ".dockerignore").read_text()


def test_docker_compose_accepts_the_file() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("docker has no compose plugin here; the tests above hold the file to what it has to say")
    done = subprocess.run(
        [docker, "compose", "config", "--quiet"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "POSTGRES_PASSWORD": "x"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
