"""Secrets stay masked when what holds them arrives in pieces."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.contracts.masked_stream import MaskedArguments, MaskedText
from interlock.contracts.masking import masked_text

TEXTS = [
    "The key is sk-abcdEFGH1234567890xyz as you asked",
    "password: hunter2 and more",
    "password = 'two words' and more",
    "the password\n  = hunter2 of it",
    "Use Authorization: Bearer abcDEF123456789 here",
    "authorization: basic dXNlcjpwYXNz and more",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE abc\ndef\n-----END RSA PRIVATE KEY----- and more",
    "a rule ----- and a\n----- line",
    "see https://user:pass@host/x for more",
    "bearer tokens are fine to talk about",
]


def pieces(text: str, sizes: list[int]) -> list[str]:
    found = []
    for size in sizes:
        found.append(text[:size])
        text = text[size:]
    return [*found, text]


@given(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=3), st.lists(st.integers(0, 12), max_size=40))
def test_masked_pieces_joined_are_the_beginning_of_the_masked_whole(texts: list[str], sizes: list[int]) -> None:
    whole, masker, shown = " ".join(texts), MaskedText(), ""
    for piece in pieces(whole, sizes):
        masker.add(piece)
        shown += masker.take()

    assert masked_text(whole).startswith(shown)
    assert not {"hunter2", "dXNlcjpwYXNz", "MIIE", "two words"} & {word for word in TEXTS if word in shown}
    for secret in ("hunter2", "dXNlcjpwYXNz", "MIIE", "two words", "sk-abcd", "abcDEF12", "user:pass"):
        assert secret not in shown


def test_all_but_the_last_word_of_harmless_text_is_shown_at_once() -> None:
    masker = MaskedText()
    masker.add("The order has arr")

    assert masker.take() == "The order has"
    masker.add("ived broken. ")
    assert masker.take() == " arrived broken."


@pytest.mark.parametrize("text", ["x" * 100_000, "word " * 20_000, "password: " * 10_000, "-----BEGIN " * 9_000])
def test_long_text_takes_linear_time(text: str) -> None:
    masker, taken = MaskedText(), 0
    for at in range(0, len(text), 1_000):
        masker.add(text[at : at + 1_000])
        taken += len(masker.take())

    assert taken <= len(text)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ('{"order": "A-1", "amount": 4', {"order": "A-1"}),
        ('{"order": "A-1"}', {"order": "A-1"}),
        ('{"api_key": "abc", "x', {}),
        ('{"api_key": "abc", "order": "A', {"api_key": "[masked]"}),
        ('{"who": {"password": "a", "name": "b"}, "n": 1', {"who": {"password": "[masked]", "name": "b"}}),
        ('["A-1"', {}),
        ("no JSON", {}),
        ("", {}),
    ],
)
def test_arguments_are_shown_masked_once_they_are_whole(written: str, shown: dict[str, Any]) -> None:
    arguments = MaskedArguments()
    arguments.add(written)

    assert arguments.take() == shown
    assert arguments.take() == {}
    assert arguments.size == len(written)
