"""Runs the tests of agents of the OpenAI Agents SDK with its oldest and its newest release that the project takes.

`python -m tests.openai_agents.ends [ARGUMENTS OF PYTEST...]`: the range is that of `pyproject.toml`, everything else is
as locked. Exits 1 when a test fails, or when the releases do not fit together.
"""

import subprocess
import sys
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENDS = {"oldest": "lowest-direct", "newest": "highest"}
"""As uv calls the way to resolve them."""


def main(arguments: Sequence[str]) -> int:
    """See the module."""
    failed = [end for end in ENDS if not _fits(end, arguments)]
    print(f"Failed with the {' and the '.join(failed)} release." if failed else "Both ends of the range pass.")
    return 1 if failed else 0


def sdk_requirements() -> list[str]:
    """What `pyproject.toml` asks for of the SDK, and of Temporal's integration of it."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return [one for one in extras["openai-agents"] if "openai-agents" in one]


def _fits(end: str, arguments: Sequence[str]) -> bool:
    folder = ROOT / ".venv-ends" / end
    python = folder / "bin" / "python"
    venv.create(folder, clear=True, with_pip=True)
    pip = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")
    only_it = ("--upgrade", "--no-deps", "--resolution", ENDS[end])
    show = "from importlib.metadata import version as v; print(*(f'{n} {v(n)}' for n in %r))"
    steps = (
        (*pip, "install", "--require-hashes", "-r", "requirements.lock"),
        (*pip, "install", "--no-deps", "--no-build-isolation", "-e", "."),
        ("-m", "uv", "pip", "install", "--quiet", "--python", str(python), *only_it, *sdk_requirements()),
        ("-m", "pip", "check"),
        ("-c", show % (["openai-agents", "temporalio-openai-agents"],)),
        ("-m", "pytest", "-n", "2", "-q", "tests/openai_agents", "tests/conformance", *arguments),
    )
    return all(subprocess.run([python, *step], cwd=ROOT).returncode == 0 for step in steps)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
