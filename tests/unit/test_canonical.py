"""Digests bind approvals to calls and starts to inputs, across processes and releases: none may ever change."""

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.contracts.canonical import digest


@pytest.mark.parametrize(
    ("value", "pinned"),
    [
        (None, "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"),
        ({}, "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
        ([], "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"),
        ("", "12ae32cb1ec02d01eda3581b127c1fee3b0dc53572ed6baf239721a03d82e126"),
        (1, "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"),
        (1.0, "d0ff5974b6aa52cf562bea5921840c032a860a91a3512f7fe8f768f6bbe005f6"),
        (True, "b5bea41b6c623f7c09f1bf24dcae58ebab3c0cdd90ad966bc43a45b44867e12b"),
        (0.1, "14be4b45f18e0d8c67b4f719b5144eee88497e413709d11d85b096d8e2346310"),
        (1e16, "a144838520595009e7daf5aff8472573f9ce6a4bcd8c30673675618883464ab0"),
        (2**60, "940721ea09245b6f5b5fe826698b0e5b2f1842932f040069f2a14e260c26ad20"),
        ("Größe 寸法 \N{PARTY POPPER}", "9974231d676fa511602d41ffd595c91558c16c0805fb75d6bddd60a660627ac5"),
        ("\ud800", "ee4a76500d4d714ca691afe56c1fd9e0a5fbcb42d6c8f8d7178aae4ddb683cf7"),
        ('a\n"\\\u2028\x00', "617e23f78a42e2c69fffa1c02df6335b7dd7a80f4e9f34a9cac38bc4b88809d5"),
        (
            {"order": "A-1001", "amount": 42.0},
            "f22ef2a028ab85759dc406b8c90e695ce24a646a2e1a1807038c010db6f6b13d",
        ),
        (
            {"b": [1, {"d": None, "c": "x"}], "a": "y"},
            "3da1214509d8248859301ef5c3208740518050a460ead1326239976849b5829a",
        ),
    ],
    ids=repr,
)
def test_a_digest_never_changes(value: Any, pinned: str) -> None:
    assert digest(value) == pinned


def test_the_order_of_keys_does_not_count_at_any_depth() -> None:
    assert digest({"a": 1, "b": [{"c": 2, "d": 3}]}) == digest({"b": [{"d": 3, "c": 2}], "a": 1})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2], [2, 1]),
        (1, 1.0),  # A tool can tell them apart.
        (1, True),
        (1, "1"),
        (None, "null"),
        ({"a": None}, {}),
        ([], {}),
        (["ab"], ["a", "b"]),
        ({"a": {"b": 1}}, {"a": 1, "b": 1}),
        ("e\u0301", "\u00e9"),
    ],
    ids=repr,
)
def test_values_that_a_tool_could_tell_apart_differ(one: Any, other: Any) -> None:
    assert digest(one) != digest(other)


def test_a_lone_surrogate_is_a_value_like_any_other() -> None:
    assert len({digest({"a": "\ud800"}), digest({"a": "\udfff"}), digest({"\ud800": "a"})}) == 3


def test_another_process_finds_the_same() -> None:
    asked = "from interlock.contracts.canonical import digest; print(digest({'b': [1.5, '\\u00e9'], 'a': {}}))"
    said = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"}
    ).stdout

    assert said.strip() == digest({"a": {}, "b": [1.5, "é"]})


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


def turned(value: Any) -> Any:
    """The same value, with every object's keys in the opposite order."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(item) for item in value] if isinstance(value, list) else value


@settings(max_examples=60, deadline=None)
@given(JSON)
def test_a_value_that_travelled_as_json_has_the_digest_it_had(value: Any) -> None:
    assert digest(json.loads(json.dumps(value))) == digest(value) == digest(turned(value))


@settings(max_examples=60, deadline=None)
@given(JSON, JSON)
def test_different_values_differ(one: Any, other: Any) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)

    assert (digest(one) == digest(other)) is same
