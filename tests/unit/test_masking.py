"""What people, summaries and logs may see of a tool's arguments, and what the tool gets back after an edit."""

import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from interlock.contracts.masking import MASK, call_label, masked, masked_text, unmasked

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4"
PRIVATE_KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    "name",
    [
        *("password", "PASSWORD", "Password", "db_password", "dbPassword", "DBPassword", "user.password"),
        *("passwd", "passphrase", "pwd", "secret", "client_secret", "clientSecret", "client secret", "passwords"),
        *("token", "access_token", "accessToken", "refresh-token", "jwt", "JWTToken", "authToken"),
        *("api_key", "apikey", "apiKey", "APIKey", "api-key", "x-api-key", "X-API-Key", "openai_api_key", "api_keys"),
        *("private_key", "privateKey", "access_key", "AWSSecretAccessKey", "signing_key", "encryptionKey"),
        *("auth", "authorization", "Authorization", "credential", "credentials", "cookie", "session_cookie"),
    ],
)
def test_what_a_secret_name_holds_is_masked(name: str) -> None:
    assert masked({name: "hunter2"}) == {name: MASK}


@pytest.mark.parametrize(
    "name",
    [
        *("max_tokens", "maxTokens", "token_count", "total_tokens", "tokenizer", "tokens"),
        *("author", "authority", "co_author", "compass", "bypass", "passport", "passenger", "pass_count"),
        *("monkey", "key", "keyboard", "primary_key", "public_key", "foreignKey", "secretary", "order", "amount"),
    ],
)
@pytest.mark.parametrize("value", ["A-1001", 42])
def test_what_only_looks_like_a_secret_name_hides_nothing(name: str, value: Any) -> None:
    assert masked({name: value}) == {name: value}


@pytest.mark.parametrize("value", [1234, 1.5, "x", "a b c"])
def test_a_secret_of_any_form_is_masked_under_its_name(value: Any) -> None:
    assert masked({"password": value}) == {"password": MASK}


@pytest.mark.parametrize("value", [None, "", True, False])
def test_what_can_be_no_secret_stays_under_any_name(value: Any) -> None:
    assert masked({"password": value}) == {"password": value}


def test_secrets_are_found_at_any_depth() -> None:
    arguments = {
        "server": {"auth": {"user": "ann", "password": "p"}, "hosts": ["a", {"api_key": "k", "port": 1}]},
        "credentials": ["one", "two", {"note": "three"}],
        "headers": [["X-Order", "A-1"], "Authorization: Bearer abc.DEF-123"],
    }

    assert masked(arguments) == {
        "server": {"auth": {"user": MASK, "password": MASK}, "hosts": ["a", {"api_key": MASK, "port": 1}]},
        "credentials": [MASK, MASK, {"note": MASK}],
        "headers": [["X-Order", "A-1"], f"Authorization: Bearer {MASK}"],
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abc.DEF-123_x", f"Authorization: Bearer {MASK}"),
        ("authorization: basic onlyletters", f"authorization: basic {MASK}"),
        ("curl -H 'Authorization: Basic dXNlcjpwYXNz' host", f"curl -H 'Authorization: Basic {MASK}' host"),
        ("send Basic dXNlcjpwYXNz with it", f"send Basic {MASK} with it"),
        ("postgres://ann:hunter2@db.example.com/shop", f"postgres://ann:{MASK}@db.example.com/shop"),
        ("redis://:hunter2@cache:6379", f"redis://:{MASK}@cache:6379"),
        ("postgres://ann:hun@ter2@db/shop", f"postgres://ann:{MASK}@db/shop"),
        ("login --password=hunter2 --user ann", f"login --password={MASK} --user ann"),
        ("the Password: hunter2, then go", f"the Password: {MASK}, then go"),
        ('password = "two words" user = ann', f'password = "{MASK}" user = ann'),
        ("{'client_secret': 'two words', 'user': 'ann'}", f"{{'client_secret': '{MASK}', 'user': 'ann'}}"),
        ('{"api_key": "k-1", "user": "ann"}', f'{{"api_key": "{MASK}", "user": "ann"}}'),
        ("https://example.com/?token=abc123&page=2", f"https://example.com/?token={MASK}&page=2"),
        ("AWS_SECRET_ACCESS_KEY=abc/def+ghi\nHOME=/", f"AWS_SECRET_ACCESS_KEY={MASK}\nHOME=/"),
        (f"it is {JWT}, use it", f"it is {MASK}, use it"),
        ("key sk-proj-abcDEF0123456789abcd works", f"key {MASK} works"),
        ("stripe sk_live_abcDEF0123456789", f"stripe {MASK}"),
        ("push with ghp_abcdefghij0123456789", f"push with {MASK}"),
        ("xoxb-1234567890-abcdefghij", MASK),
        ("AKIAIOSFODNN7EXAMPLE is the id", f"{MASK} is the id"),
        (f"take {PRIVATE_KEY} away", f"take -----BEGIN RSA PRIVATE KEY-----{MASK} away"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEow cut o", f"-----BEGIN PRIVATE KEY-----{MASK}"),
        ("password=one, password=two", f"password={MASK}, password={MASK}"),
    ],
)
def test_a_secret_inside_free_text_is_masked_and_the_rest_is_not(text: str, shown: str) -> None:
    assert masked_text(text) == shown
    assert masked({"note": [text]}) == {"note": [shown]}


@pytest.mark.parametrize(
    "text",
    [
        "the token ring of the bearer",
        "She passed the password on to her monkey.",
        "a bearer certificate and a basic subscription",
        "Basic information: Bearer shares exist.",
        "max_tokens is 500, token_count: see below",
        "author: Ann; compass: north; keyboard=qwertz",
        "https://example.com:8080/path@2x.png",
        "mail ann@example.com at 10:30",
        "task-force, risk-averse, disk_0123456789abcdef0",
        "order A-1001, 42.00",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "Größe: 寸法 \N{PARTY POPPER}",
        "",
    ],
)
def test_prose_is_left_alone(text: str) -> None:
    assert masked_text(text) == text


@pytest.mark.parametrize(
    "piece", ["ab", "a-", "a+", "eyJ-", "sk-", "password", "token ", "bearer ", "://a:", "-----BEGIN ", "a@", "\\'"]
)
def test_long_text_is_read_in_linear_time(piece: str) -> None:
    """A model writes this text and workflow code reads it: a run that thinks for seconds is taken for stuck."""
    text = piece * (16_000 // len(piece))
    started = time.perf_counter()
    masked_text(text)

    assert time.perf_counter() - started < 1


REAL = {
    "user": "ann",
    "password": "hunter2",
    "note": "use token=abc now",
    "amount": 1,
    "servers": [{"host": "a", "password": "pa"}, {"host": "b", "password": "pb"}],
    "api_keys": ["k1", "k2"],
}


def test_a_masked_value_that_is_left_as_it_was_is_the_real_one() -> None:
    assert unmasked(masked(REAL), REAL) == REAL


@pytest.mark.parametrize(
    ("change", "gets"),
    [
        ({"user": "bob"}, {"user": "bob"}),
        ({"password": "new"}, {"password": "new"}),
        ({"password": ""}, {"password": ""}),
        ({"password": None}, {"password": None}),
        ({"note": "nothing"}, {"note": "nothing"}),
        ({"amount": 2}, {"amount": 2}),
        ({"added": ["x", 1]}, {"added": ["x", 1]}),
        ({"servers": []}, {"servers": []}),
        ({"servers": "none"}, {"servers": "none"}),
        (
            {"servers": [{"host": "c", "password": MASK}, {"host": "b", "password": "new"}]},
            {"servers": [{"host": "c", "password": "pa"}, {"host": "b", "password": "new"}]},
        ),
    ],
    ids=str,
)
def test_what_the_reviewer_changes_or_adds_is_taken_and_the_rest_stays_real(
    change: dict[str, Any], gets: dict[str, Any]
) -> None:
    assert unmasked({**masked(REAL), **change}, REAL) == {**REAL, **gets}


def test_what_the_reviewer_takes_out_is_gone() -> None:
    edited = masked(REAL)
    del edited["password"], edited["servers"][0]["password"]

    assert unmasked(edited, REAL) == {
        **{name: value for name, value in REAL.items() if name != "password"},
        "servers": [{"host": "a"}, {"host": "b", "password": "pb"}],
    }


@pytest.mark.parametrize("order", [[1], [0], [1, 0], [1, 0, 1]], ids=str)
def test_an_item_that_was_moved_keeps_its_own_secret(order: list[int]) -> None:
    servers = masked(REAL)["servers"]
    edited = {**masked(REAL), "servers": [servers[at] for at in order]}

    assert unmasked(edited, REAL)["servers"] == [
        [{"host": "a", "password": "pa"}, {"host": "b", "password": "pb"}][at] for at in order
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"api_keys": [MASK]},
        {"api_keys": [MASK, MASK, "k3"]},
        {"note": f"use token={MASK} tomorrow"},
        {"added": MASK},
        {"user": {"password": MASK}},
        {"servers": [{"host": "c", "password": MASK}]},
        {"servers": {"password": MASK}},
    ],
    ids=str,
)
def test_the_tool_never_gets_the_mask_itself(change: dict[str, Any]) -> None:
    """Where nobody can tell which secret a mask stands for, the edit is refused and the request stays open."""
    with pytest.raises(ValueError, match="write it in full") as refused:
        unmasked({**masked(REAL), **change}, REAL)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("real", "edited", "gets"),
    [
        ("use token=abc now", f"Use token={MASK}, please.", "Use token=abc, please."),
        (f"the {JWT} is Ann's", f"Ann's: {MASK}", f"Ann's: {JWT}"),
        ({"notes": ["x", "token=abc"]}, {"notes": ["y", f"token={MASK} z"]}, {"notes": ["y", "token=abc z"]}),
    ],
    ids=str,
)
def test_a_text_can_be_edited_around_its_only_secret(real: Any, edited: Any, gets: Any) -> None:
    assert unmasked({"output": edited}, {"output": real}, in_text=True) == {"output": gets}
    with pytest.raises(ValueError, match="write it in full"):
        unmasked({"output": edited}, {"output": real})


@pytest.mark.parametrize(
    ("real", "edited"),
    [
        ("token=abc and token=def", f"token={MASK} and no more"),
        ("token=abc and token=def", f"both: token={MASK} and token={MASK}"),
        ("token=abc", f"token={MASK} and again token={MASK}"),
        ("token=abc now", f"it is {MASK} now"),
        (f"{MASK} stands for token=abc", f"{MASK} stands for token={MASK}!"),
        ("token=abc", f"{MASK}"),
    ],
    ids=str,
)
def test_no_secret_is_put_where_it_is_another_or_would_be_shown(real: str, edited: str) -> None:
    with pytest.raises(ValueError, match="write it in full"):
        unmasked({"output": edited}, {"output": real}, in_text=True)


@given(st.text(), st.text(), st.text())
def test_an_edited_text_never_brings_a_secret_into_what_is_shown(before: str, after: str, added: str) -> None:
    real = f"{before} token=hunter2 {after}"
    edited = masked_text(real) + added
    try:
        got = unmasked({"output": edited}, {"output": real}, in_text=True)["output"]
    except ValueError:
        return
    assert masked_text(got) == masked_text(edited)


def test_a_label_of_something_large_is_made_at_once() -> None:
    """A run makes many in one workflow task, which has two seconds."""
    large = {"output": [{"text": "Dear Ann, your order has arrived. " * 40_000, "token": "abc"}] * 2}
    started = time.perf_counter()
    labels = {call_label("review", large) for _ in range(30)}

    assert time.perf_counter() - started < 2
    assert [label[:38] for label in labels] == ["review: output [{text Dear Ann, your o"]


@pytest.mark.parametrize(("real", "edited"), [(1, True), (0, False), (1, 1.0), (True, 1), ("1", 1)], ids=str)
def test_an_edit_that_only_changes_the_type_counts(real: Any, edited: Any) -> None:
    got = unmasked({"force": edited}, {"force": real})["force"]

    assert (got, type(got)) == (edited, type(edited))


def test_a_mask_that_the_model_wrote_itself_is_just_text() -> None:
    assert unmasked({"note": f"{MASK} x"}, {"note": MASK}) == {"note": f"{MASK} x"}


@pytest.mark.parametrize(
    ("arguments", "label"),
    [
        ({}, "refund"),
        ({"order": "A-1001", "amount": 42.0}, "refund: order A-1001, amount 42.00"),
        ({"amount": 42}, "refund: amount 42"),
        ({"rate": 0.125, "tiny": 1e-9, "huge": 1e22}, "refund: rate 0.125, tiny 1e-09, huge 1" + "0" * 22 + ".00"),
        ({"api_key": "k", "order": "A-1"}, f"refund: api_key {MASK}, order A-1"),
        ({"to": {"name": "Ann", "tags": ["a", 1.5]}}, "refund: to {name Ann, tags [a, 1.50]}"),
        ({"text": "two\nlines\r\n\tand   more\u2028end"}, "refund: text two lines and more end"),
        ({"a\nb": 1}, "refund: a b 1"),
        ({"order": "A-1001", "note": ""}, 'refund: order A-1001, note ""'),
        ({"note": " \n", "tags": [""]}, 'refund: note "", tags [""]'),
        ({"to": {"a\nb": 1}}, "refund: to {a b 1}"),
        ({"note": "Größe 寸法 \N{PARTY POPPER}"}, "refund: note Größe 寸法 \N{PARTY POPPER}"),
        ({"text": "x" * 61}, f"refund: text {'x' * 59}…"),
        ({"text": "x" * 60}, f"refund: text {'x' * 60}"),
    ],
)
def test_a_call_is_told_in_one_line(arguments: dict[str, Any], label: str) -> None:
    assert call_label("refund", arguments) == label


def test_a_long_label_is_cut_to_its_limit() -> None:
    arguments = {f"argument_{n}": "x" * 50 for n in range(10)}

    assert len(call_label("refund", arguments)) == 180
    assert call_label("refund", arguments).endswith("…")
    assert call_label("refund", {"a": "xyz"}, limit=13) == "refund: a xyz"
    assert call_label("refund", {"a": "xyz"}, limit=12) == "refund: a x…"


SECRETS = ["hunter2", JWT, PRIVATE_KEY, "token=abc", "Bearer abc.DEF-123", "x://a:b@c", "sk-abcdefghij0123456789", MASK]
KEYS = st.sampled_from(["password", "api_key", "tokens", "note", "auth", "dbPassword"]) | st.text(max_size=8)
TEXTS = st.text(max_size=12) | st.builds(str.__add__, st.sampled_from(SECRETS), st.text(max_size=6))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
JSON: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
QUICKLY = settings(max_examples=60, deadline=None)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=4)


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else None


@QUICKLY
@given(OBJECTS)
@example({"password": ["a", "b", {"x": MASK}], "token=bearer abcdefgh1": "token=bearer abcdefgh1"})
def test_masking_keeps_the_shape_and_masks_what_is_masked_no_further(value: dict[str, Any]) -> None:
    assert shape(masked(value)) == shape(value)
    assert masked(masked(value)) == masked(value)


@QUICKLY
@given(OBJECTS)
@example({"api_keys": ["a", "a", "b"], "password": {"token": None}})
def test_an_edit_that_changes_nothing_gives_the_real_arguments(value: dict[str, Any]) -> None:
    assert unmasked(masked(value), value) == value


@QUICKLY
@given(OBJECTS, OBJECTS)
def test_an_edit_without_masks_is_taken_word_for_word(edited: dict[str, Any], real: dict[str, Any]) -> None:
    if MASK not in str(edited):
        assert unmasked(edited, real) == edited


@QUICKLY
@given(OBJECTS, st.integers(min_value=1, max_value=200))
def test_a_label_is_one_line_within_its_limit(arguments: dict[str, Any], limit: int) -> None:
    label = call_label("refund", arguments, limit=limit)

    assert len(label) <= limit
    assert len(label.splitlines()) == 1


def test_everything_below_a_secrets_name_is_masked() -> None:
    assert masked({"secrets": {"db": "hunter3", "deep": [{"x": "y"}]}, "access_tokens": ["a", "b"]}) == {
        "secrets": {"db": MASK, "deep": [{"x": MASK}]},
        "access_tokens": [MASK, MASK],
    }


def test_a_secret_of_an_item_that_moved_goes_to_no_other() -> None:
    real = {"accounts": [{"name": "a", "token": "t1"}, {"name": "b", "token": "t2"}]}
    edited = {"accounts": [{"name": "b", "token": MASK}, {"name": "c", "token": MASK}]}
    with pytest.raises(ValueError, match="a masked value was moved"):
        unmasked(edited, real)


def test_a_mask_that_is_part_of_a_text_is_told_from_one_that_hides_something() -> None:
    with pytest.raises(ValueError, match="a masked value was moved or changed in part"):
        unmasked({"note": f"now {MASK} and password={MASK}"}, {"note": f"replace {MASK} and password=hunter2"})
