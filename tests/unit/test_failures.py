"""What is said of an error, whatever error it is, and how it is written into a history."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError
from pydantic_ai.exceptions import UserError
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DefaultPayloadConverter
from temporalio.exceptions import ActivityError, ApplicationError

from interlock._failures import ToldFailures
from interlock.contracts.failures import LONGEST_MESSAGE, bounded, told, unread
from tests.workflows.failing import KINDS

HERE = "tests.unit.test_failures"


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def written(error: BaseException) -> Failure:
    failure = Failure()
    ToldFailures().to_failure(error, DefaultPayloadConverter(), failure)
    return failure


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_can_be_told_and_written(kind: str) -> None:
    make, error_type = KINDS[kind]
    error = raised(make())
    what, failure = told(error), written(error)

    assert what.type == error_type
    assert 0 < len(what.message) < LONGEST_MESSAGE + 500
    assert failure.application_failure_info.type == error_type
    assert failure.message == what.message
    assert failure.ByteSize() < 200_000


def test_the_place_is_the_function_and_the_line_without_a_path() -> None:
    def raises() -> None:
        raise LookupError("gone")

    def calls() -> None:
        raises()

    try:
        calls()
    except LookupError as error:
        message = told(error).message

    test = "test_the_place_is_the_function_and_the_line_without_a_path"
    line = raises.__code__.co_firstlineno
    assert message.startswith(f"gone (in {test}.raises of {HERE}, line {line + 1}, from {test} of {HERE}, line ")
    assert "/" not in message


def test_the_place_of_a_cause_is_told_when_a_library_raised_in_its_name() -> None:
    error = UserError("too many")
    error.__cause__ = raised(LookupError("gone"))

    assert told(error).message.startswith(f"too many (in raised of {HERE}, line ")


def test_what_a_library_raises_by_itself_has_no_place() -> None:
    assert told(UserError("too many")).message == "too many"
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("")
    caught.value.__traceback__ = caught.value.__traceback__ and caught.value.__traceback__.tb_next

    assert told(caught.value).message == "Expecting value: line 1 column 1 (char 0)"


def test_code_that_is_installed_as_packages_are_is_the_users_too(tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "shop.py").write_text("def refund():\n    raise LookupError('gone')\n")
    program = textwrap.dedent("""
        import sys
        sys.path.insert(0, "site-packages")
        import shop
        from interlock.contracts.failures import told
        try:
            shop.refund()
        except LookupError as error:
            error.__traceback__ = error.__traceback__.tb_next
            print(told(error).message)
    """)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout == "gone (in refund of shop, line 2)\n"


def test_what_looks_like_a_secret_is_masked_also_where_the_text_is_cut() -> None:
    key = "sk-abcdefghijklmnop1234567"

    assert told(LookupError(f"Authorization: Bearer {key}")).message == "Authorization: Bearer [masked]"
    for at in range(LONGEST_MESSAGE - len(key) - 2, LONGEST_MESSAGE + 2):
        assert "abcdefgh" not in bounded("x " * (at // 2) + key + "y" * 10_000)


def test_a_long_message_says_how_long_it_was() -> None:
    assert told(LookupError("x" * 3_000_000)).message == f"{'x' * LONGEST_MESSAGE}… (3,000,000 characters in all)"


def test_a_group_names_what_is_in_it() -> None:
    group = ExceptionGroup("several", [LookupError("gone"), OSError("down")])

    assert told(group).type == "ExceptionGroup"
    assert told(group).message == "several (2 sub-exceptions); LookupError: gone; OSError: down"


def test_a_value_that_does_not_fit_is_told_by_its_place_and_not_by_itself() -> None:
    class Order(BaseModel):
        amount: int

    with pytest.raises(ValidationError) as caught:
        Order(amount="hunter2")  # type: ignore[arg-type]

    assert unread(caught.value) == ("amount: Input should be a valid integer, unable to parse string as an integer")
    assert unread(KeyError("hunter2")) == "KeyError"


@pytest.mark.parametrize(
    "make",
    [
        lambda: ApplicationError("mine", object(), type="Mine", non_retryable=True),
        lambda: ApplicationError("mine \ud800", type="Mine", non_retryable=True),
        lambda: ApplicationError("x" * 3_000_000, type="Mine", non_retryable=True),
    ],
    ids=["details", "text", "size"],
)
def test_an_error_of_temporals_own_kind_keeps_its_type_and_its_word_on_retries(
    make: Callable[[], ApplicationError],
) -> None:
    failure = written(make())

    assert failure.application_failure_info.type == "Mine"
    assert failure.application_failure_info.non_retryable
    assert failure.message.startswith(("mine", "xxx"))
    assert len(failure.message) < 6_000


def test_causes_are_written_five_deep() -> None:
    failure, depth = written(KINDS["chain"][0]()), 0
    while failure.HasField("cause"):
        failure, depth = failure.cause, depth + 1

    assert depth == 5


def test_what_a_step_could_not_read_is_named_without_the_value() -> None:
    class Deps(BaseModel):
        amount: int

    unreadable = ApplicationError("Failed decoding arguments")
    with pytest.raises(ValidationError) as caught:
        Deps(amount="hunter2")  # type: ignore[arg-type]
    unreadable.__cause__ = caught.value
    failure = written(unreadable)

    assert failure.application_failure_info.type == "UnreadableInputError"
    assert failure.message.startswith("The step cannot read what it was given: amount: Input should be a valid integer")
    assert "hunter2" not in str(failure)
    assert not failure.application_failure_info.non_retryable


def test_the_failure_of_a_step_is_written_as_it_is() -> None:
    error = ActivityError(
        "Activity task failed",
        scheduled_event_id=5,
        started_event_id=6,
        identity="worker",
        activity_type="work",
        activity_id="1",
        retry_state=None,
    )
    error.__cause__ = ApplicationError("down", type="OSError")
    failure = written(error)

    assert failure.activity_failure_info.activity_type.name == "work"
    assert (failure.cause.message, failure.cause.application_failure_info.type) == ("down", "OSError")
