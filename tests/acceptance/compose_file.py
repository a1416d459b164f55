"""Reads the YAML of our compose file, so that no dependency is needed for it: the forms it uses, and no other one."""

import json
import re
from collections.abc import Iterator
from typing import Any

_KEY = re.compile(r"([\w.-]+):(?: +(.+))?")


def parse(text: str) -> dict[str, Any]:
    """Mappings and lists by indentation, lists in brackets, block texts, and scalars, all of which stay strings."""
    reader = _Reader(text.splitlines())
    parsed = reader.mapping(0)
    assert reader.at_end(), f"line {reader.number + 1} is in a form that is not read: {reader.lines[reader.number]}"
    return parsed


class _Reader:
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.number = 0

    def at_end(self) -> bool:
        while self.number < len(self.lines) and re.fullmatch(r"\s*(#.*)?", self.lines[self.number]):
            self.number += 1
        return self.number == len(self.lines)

    def mapping(self, indent: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for line in self._lines_at(indent):
            key = _KEY.fullmatch(line)
            if key is None:
                break
            assert key[1] not in found, f"{key[1]} is there twice"
            self.number += 1
            found[key[1]] = self._value(key[2], indent)
        return found

    def _value(self, scalar: str | None, indent: int) -> Any:
        if scalar == "|":
            return self._block()
        if scalar is not None:
            return _scalar(scalar)
        if self.at_end() or self._indent() <= indent:
            return None
        return self._list() if self.lines[self.number].lstrip().startswith("- ") else self.mapping(self._indent())

    def _list(self) -> list[Any]:
        indent, found = self._indent(), list[Any]()
        for line in self._lines_at(indent):
            item = line.removeprefix("- ")
            if item != "|" and _KEY.fullmatch(item):  # A mapping that begins beside the dash.
                self.lines[self.number] = " " * (indent + 2) + item
                found.append(self.mapping(indent + 2))
            else:
                self.number += 1
                found.append(self._block() if item == "|" else _scalar(item))
        return found

    def _block(self) -> str:
        indent = self._indent()
        taken: list[str] = []
        while self.number < len(self.lines) and (not self.lines[self.number] or self._indent() >= indent):
            taken.append(self.lines[self.number][indent:])
            self.number += 1
        return "\n".join(taken).rstrip("\n") + "\n"

    def _lines_at(self, indent: int) -> Iterator[str]:
        while not self.at_end() and self._indent() == indent:
            yield self.lines[self.number].strip()

    def _indent(self) -> int:
        line = self.lines[self.number]
        return len(line) - len(line.lstrip(" "))


def _scalar(text: str) -> Any:
    if text.startswith(("[", '"')):
        return json.loads(text)
    assert " #" not in text, f"a comment behind a value is not read: {text}"
    assert not text.startswith(("{", "'", "&", "*", ">", "|", "!")), f"a form that is not read: {text}"
    return text
