"""Runs the tests of the bridge with the oldest release of Airflow that the project takes.

`python -m tests.bridge.oldest [ARGUMENTS OF PYTEST...]`: the release is the lower end of the range in `pyproject.toml`,
and everything else as locked, where Airflow lets it be. Exits 1 when a test fails, or when nothing fits the release.
"""

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv-ends" / "airflow"
# Airflow 3.1 keeps Starlette below 0.49, and pydantic-ai beside it the MCP SDK below 2. The adapter for the OpenAI
# Agents SDK, which these tests run too, needs 2.
LEFT_OUT = [f"--ignore=tests/bridge/{name}" for name in ("test_soak.py", "test_toolsets.py")]


def main(arguments: Sequence[str]) -> int:
    """See the module."""
    release = oldest()
    print(f"The tests of the bridge with {release}.", flush=True)
    uv, python, pinned = (sys.executable, "-m", "uv"), FOLDER / "bin" / "python", FOLDER / "requirements.txt"
    pip = (*uv, "pip", "--quiet")
    no_index = ("--no-config", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links")
    everything = ("--all-extras", "--group", "dev", "pyproject.toml", "-")
    steps: list[Sequence[str | Path]] = [
        (*uv, "venv", "--quiet", "--clear", "--python", sys.executable, FOLDER),
        ("cp", "requirements.lock", pinned),  # Where uv finds a version it keeps it.
        (*pip, "compile", "--python", python, *no_index, "--generate-hashes", "-o", pinned, *everything),
        (*pip, "install", "--python", python, "--require-hashes", "-r", pinned),
        (*pip, "install", "--python", python, "--no-deps", "--no-build-isolation", "-e", "."),
        (*pip, "check", "--python", python),
        # What that release itself warns of is not ours to mend.
        (
            python,
            "-m",
            "pytest",
            "-n",
            "2",
            "--dist",
            "worksteal",
            "-W",
            "default",
            *LEFT_OUT,
            "tests/bridge",
            *arguments,
        ),
    ]
    return int(any(subprocess.run(step, cwd=ROOT, input=release, text=True).returncode for step in steps))


def oldest() -> str:
    """The requirement for the oldest release of Airflow that `pyproject.toml` takes."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (airflow,) = map(Requirement, extras["airflow"])
    (lowest,) = (one.version for one in airflow.specifier if one.operator == ">=")
    return f"{airflow.name}=={lowest}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
