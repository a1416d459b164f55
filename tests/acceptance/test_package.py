"""What is built and installed: one package with its four rooms, that works where no agent framework is."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
ROOMS = ("workflows", "activities", "adapters", "bridge")
NEED_AN_EXTRA = (
    "interlock.adapters.openai_agents",
    "interlock.adapters.pydantic_ai",
    "interlock.worker",
    "interlock.replay",
    "interlock.testing",
    "interlock.demo",
    "interlock.spans",
    "interlock.bridge.",
)


def run(*command: str | Path, **options: str) -> str:
    """The output of a program that has to do well."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        cwd=options.get("cwd"),
        env=environment,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that is built from it, and in `direct` the wheel of the repository."""
    folder = tmp_path_factory.mktemp("dist")
    builds: list[list[str | Path]] = [["--outdir", folder], ["--wheel", "--outdir", folder / "direct"]]
    for options in builds:
        run(sys.executable, "-m", "build", "--no-isolation", *options, ROOT)
    return folder


def wheel_in(folder: Path) -> Path:
    (wheel,) = folder.glob("*.whl")
    return wheel


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_one_package_and_its_own_description(dist: Path) -> None:
    tops = {name.partition("/")[0] for name in contents(wheel_in(dist))}

    assert {top for top in tops if not top.endswith(".dist-info")} == {"interlock"}
    assert len(tops) == 2


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_is_a_real_folder_in_the_wheel(dist: Path, room: str) -> None:
    """In the repository the rooms are linked into the package; links do not survive every installer."""
    held = contents(wheel_in(dist))
    sources = {path.relative_to(ROOT / room) for path in (ROOT / room).rglob("*.py")}

    for path in sources:
        assert held[f"interlock/{room}/{path.as_posix()}"] == (ROOT / room / path).read_bytes()
    with zipfile.ZipFile(wheel_in(dist)) as archive:
        assert all(info.external_attr >> 28 != 0o12 for info in archive.infolist())


def test_the_wheel_holds_what_a_package_needs_and_no_more(dist: Path) -> None:
    held = contents(wheel_in(dist))

    assert {"interlock/py.typed", "interlock/journal/page.css"} <= set(held)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in held)
    assert b"interlock = interlock.cli:script" in next(
        text for name, text in held.items() if name.endswith("/entry_points.txt")
    )
    assert [name for name in held if "__pycache__" in name or "/tests/" in name or name.endswith(".pyc")] == []


def test_the_sdist_builds_the_same_wheel(dist: Path) -> None:
    assert contents(wheel_in(dist)) == contents(wheel_in(dist / "direct"))


def test_the_sdist_holds_the_sources_once_and_nothing_of_the_workshop(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"pyproject.toml", "README.md", "LICENSE", "src/interlock/workflows/agent.py"} <= names
    assert {name.partition("/")[0] for name in names} <= {
        *("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "PKG-INFO", ".gitignore", "src")
    }


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an empty environment with the wheel in it and the dependencies that it names, and no extra."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps", "--python", python, wheel_in(dist))
    (site_packages,) = (folder / "lib").glob("python*/site-packages")
    (metadata,) = importlib.metadata.distributions(name="interlock", path=[str(site_packages)])
    for name in sorted(needed(metadata)):
        link(name, site_packages)
    return python


def needed(distribution: importlib.metadata.Distribution) -> set[str]:
    """The names of all distributions that one needs, and those need, without asking for an extra of the first."""
    found: set[str] = set()
    open_ends: list[tuple[importlib.metadata.Distribution, frozenset[str]]] = [(distribution, frozenset({""}))]
    while open_ends:
        one, extras = open_ends.pop()
        for text in one.requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras):
                continue
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            if name not in found or requirement.extras:
                found.add(name)
                open_ends.append((importlib.metadata.distribution(name), frozenset({"", *requirement.extras})))
    return found


def link(name: str, site_packages: Path) -> None:
    """Put a distribution of this environment, file by file, into another: what is locked, without a download."""
    distribution = importlib.metadata.distribution(name)
    for file in distribution.files or ():
        if file.parts[0] != ".." and "__pycache__" not in file.parts:
            target = site_packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(Path(str(distribution.locate_file(file))))


def modules(package: Path) -> Iterator[str]:
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_what_the_wheel_names_is_all_it_needs(installed: Path) -> None:
    """Its dependencies are there in the versions it asks for, an agent framework is not."""
    run(sys.executable, "-m", "uv", "pip", "check", "--offline", "--python", installed)
    frameworks = run(
        installed, "-c", "from importlib.util import find_spec as f; print(f('pydantic_ai'), f('agents'), f('airflow'))"
    )

    assert frameworks.split() == ["None"] * 3


def test_every_room_that_needs_no_extra_imports_where_no_framework_is(installed: Path, tmp_path: Path) -> None:
    (package,) = installed.parents[1].glob("lib/python*/site-packages/interlock")
    wanted = [name for name in modules(package) if not name.startswith(NEED_AN_EXTRA) and "__main__" not in name]
    said = run(installed, "-I", "-W", "error", "-c", f"import sys, {', '.join(wanted)}; print(*sys.modules)")

    assert {"interlock.client", "interlock.cli", "interlock.workflows.agent", "interlock.server"} <= set(wanted)
    assert set(wanted) <= set(said.split())
    assert "pydantic_ai" not in said.split()


def test_the_installed_package_is_the_one_that_is_used(installed: Path, tmp_path: Path) -> None:
    said = run(installed, "-I", "-c", "import interlock; print(interlock.__file__); print(interlock.Client.__name__)")

    assert Path(said.split()[0]).is_relative_to(installed.parents[1])
    assert said.split()[1] == "Client"


def test_the_installed_program_runs_and_says_what_is_missing_for_an_agent(installed: Path, tmp_path: Path) -> None:
    program = installed.parent / "interlock"
    assert "interlock runs start support" in run(program, "--help", cwd=str(tmp_path))

    (tmp_path / "support.py").write_text("from interlock.adapters.pydantic_ai import Durable\n")
    told = subprocess.run(
        [program, "worker", "run", "support:app"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert told.returncode != 0
    assert told.stderr.count("\n") == 1
    assert re.search("pydantic.ai", told.stderr)
