"""The JSON of arguments: the same in every process, whatever order its sets have there."""

import json
import os
import subprocess
import sys

SCRIPT = """
import json
from pydantic import BaseModel, Field, RootModel
from interlock.adapters.pydantic_ai._json import as_json_object
class Tagged(BaseModel):
    al: set[str] = Field(alias="aliasTags")
class Root(RootModel[set[str]]):
    pass
words = {"pear", "apple", "fig", "date", "plum"}
args = {
    "plain": words,
    "nested": {frozenset(words), frozenset({"x", "y", "z"})},
    "model": Tagged(aliasTags=words),
    "models": [Tagged(aliasTags=words)],
    "root": Root(words),
    "by key": {1: words},
    "tuple": (words, 1),
}
print(json.dumps(as_json_object(args)))
"""


def test_sets_are_written_in_one_order_in_every_process() -> None:
    written = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        written.add(done.stdout)

    assert len(written) == 1
    assert json.loads(written.pop())["plain"] == ["apple", "date", "fig", "pear", "plum"]
