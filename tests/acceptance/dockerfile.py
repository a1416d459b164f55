"""Does what a Dockerfile says, without docker: each stage is a folder, and every absolute path lies in it.

What that cannot show: the base image (an environment with the Python of the tests stands in for it), another user, a
root file system that is read-only. An instruction that is not known here is an error.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

PLACES = ("build", "opt", "data", "app")


@dataclass
class Stage:
    """One stage: the folder that is its root, and what its instructions have set so far."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "root"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)

    def place(self, path: str) -> Path:
        """Where a path of the image is."""
        return self.root / os.path.join(self.folder, path).lstrip("/")  # noqa: PTH118 - an absolute path replaces

    def mapped(self, text: str) -> str:
        """The text with its absolute paths in the stage's folder."""
        return re.sub(rf"(?<![\w.:/-])/({'|'.join(PLACES)})\b", rf"{self.root}/\1", text)

    def variables(self) -> dict[str, str]:
        """The environment of what runs in the stage, and nothing of the machine's but its programs."""
        base = f"{self.root}/usr/local/bin:/usr/local/bin:/usr/bin:/bin"
        path = self.mapped(self.environment.get("PATH", "$PATH")).replace("$PATH", base)
        others = {name: self.mapped(value) for name, value in self.environment.items()}
        return {**others, "PATH": path}


def build(dockerfile: Path, context: Path, folder: Path) -> Stage:
    """The last stage, with every instruction done. The context is reduced by its .dockerignore first."""
    sent = folder / "context"
    _send(context, sent)
    stages: dict[str, Stage] = {}
    stage = Stage(folder)
    for word, rest in instructions(dockerfile.read_text()):
        if word == "FROM":
            name = rest.partition(" AS ")[2] or "final"
            stage = stages[name] = Stage(folder / name)
            _base(stage)
        else:
            _do(stage, word, rest, sent, stages)
    for left in (sent, *(one.root for one in stages.values() if one is not stage)):
        shutil.rmtree(left)  # No image has them.
    return stage


def instructions(text: str) -> list[tuple[str, str]]:
    """Each instruction with what follows it, in one line."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines.splitlines()) if word]


def _do(stage: Stage, word: str, rest: str, context: Path, stages: dict[str, Stage]) -> None:
    if word == "ENV":
        stage.environment |= dict(pair.split("=", 1) for pair in shlex.split(rest))
    elif word == "WORKDIR":
        stage.folder = rest
        stage.place("").mkdir(parents=True, exist_ok=True)
    elif word == "COPY":
        _copy(stage, rest, context, stages)
    elif word == "RUN":
        _run(stage, rest)
    elif word == "USER":
        stage.user = rest
    elif word == "ENTRYPOINT":
        stage.entrypoint = json.loads(rest)
    elif word == "CMD":
        stage.command = json.loads(rest)
    else:
        raise AssertionError(f"It is not known how to do {word} {rest}")


def _base(stage: Stage) -> None:
    """What the base image brings: `python` and `pip` in /usr/local/bin."""
    subprocess.run([sys.executable, "-m", "uv", "venv", "--quiet", "--seed", stage.root / "usr/local"], check=True)


def _run(stage: Stage, command: str) -> None:
    # The machine's own variables say how its package registry is reached. What is compiled beforehand only saves time.
    machine = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        ["sh", "-euc", stage.mapped(command)],
        cwd=stage.place(""),
        env={**machine, **stage.variables(), "UV_COMPILE_BYTECODE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def _copy(stage: Stage, rest: str, context: Path, stages: dict[str, Stage]) -> None:
    words = rest.split()
    options = dict(word.removeprefix("--").split("=") for word in words if word.startswith("--"))
    *sources, to = [word for word in words if not word.startswith("--")]
    target = stage.place(to)
    for source in sources:
        found = stages[options["from"]].place(source) if "from" in options else context / source
        if found.is_dir():
            shutil.copytree(found, target, symlinks=True, dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(found, target)


def _send(context: Path, sent: Path) -> None:
    """Copy what a .dockerignore lets through that forbids everything and then allows by name."""
    rules = [line for line in (context / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert rules[0] == "*"
    assert rules[-1] == "**/__pycache__"
    sent.mkdir()
    for rule in rules[1:-1]:
        source = context / rule.removeprefix("!")
        if source.is_dir():
            shutil.copytree(source, sent / source.name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, sent)
