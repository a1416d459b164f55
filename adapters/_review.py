"""The review of an agent's output: a person sees it before it becomes the run's, and may send the agent back to it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pydantic_core import to_json
from temporalio.exceptions import ApplicationError

from interlock.adapters._calls import CallScope, has_infinite
from interlock.contracts import names
from interlock.contracts.failures import LARGEST_OUTPUT_BYTES, output_too_large
from interlock.contracts.masking import masked_text
from interlock.contracts.payloads import Json, RunInput
from interlock.contracts.ports import FailedStep, GatedCall, Ruling

_OUTPUT = "output"
_DESCRIPTION = (
    "Approve to make it the run's output, edited if need be; reject with a reason to have the agent change it; "
    "give up to end the run."
)


@dataclass(frozen=True)
class Reviewed:
    """What became of an output.

    output: to be the run's. feedback: what the agent is to change instead; empty when the output stands.
    limits: usage limits in place of the run's, when somebody has given new ones.
    """

    output: Json = None
    feedback: str = ""
    limits: Mapping[str, Json] = field(default_factory=dict)


class Review:
    """The review of the outputs of one run; without one every output stands. left: see `Carried.reviews_left`."""

    def __init__(self, run: RunInput, scope: CallScope) -> None:
        self._scope = scope
        self._rounds = run.review_rounds
        self.left = run.carried.reviews_left if run.carried else run.review_rounds
        self._by = ""

    async def of(
        self,
        output: Json,
        path: tuple[str, ...],
        fitting: Callable[[Json], Json],
        failed: Callable[[Exception], FailedStep],
    ) -> Reviewed:
        """Ask about an output.

        path: of the agent that gave it. fitting: an output of a reviewer's in the form in which the agent would have
        given it; raises ValueError when it is none. failed: the next request to the model as a step that has failed:
        once no output is left to be asked about, the run is stuck there.
        Raises ApplicationError, not retried: `OutputRejectedError` when the reviewer gives up, `OutputTooLargeError`
        before anybody is asked about an output that cannot be a run's.
        """
        if self.left is None:
            return Reviewed(output)
        if (size := len(to_json(output))) > LARGEST_OUTPUT_BYTES:
            raise ApplicationError(output_too_large(size), type=names.OUTPUT_TOO_LARGE, non_retryable=True)
        ruling = await self._scope.gate.ask(self._question(output, path, fitting))
        if ruling.outcome == "approved":
            return Reviewed(ruling.arguments[_OUTPUT])
        who, reason = self._by or "A reviewer", f": {masked_text(ruling.reason)}" if ruling.reason else "."
        if ruling.outcome == "given_up":
            raise ApplicationError(
                f"{who} has given up on the output{reason}", type=names.OUTPUT_REJECTED, non_retryable=True
            )
        self.left -= 1
        if self.left:
            return Reviewed(feedback=ruling.reason)
        error = ApplicationError(
            f"{who} wants the output changed, which was the last of {self._rounds} to be asked about{reason}",
            type=names.REVIEW_ROUNDS_USED_UP,
            non_retryable=True,
        )
        retry = await self._scope.recovery.wait(failed(error))
        self.left = self._rounds
        return Reviewed(feedback=ruling.reason, limits=retry.usage_limits or {})

    def _question(self, output: Json, path: tuple[str, ...], fitting: Callable[[Json], Json]) -> GatedCall:
        def check(arguments: Mapping[str, Json]) -> dict[str, Json]:
            if set(arguments) != {_OUTPUT}:
                raise ValueError(f'the output is to be given as {{"{_OUTPUT}": ...}}')
            fits = {_OUTPUT: fitting(arguments[_OUTPUT])}
            if has_infinite(fits):  # Written as text, which a number's type may read.
                raise ValueError("numbers have to be finite")
            if len(to_json(fits)) > LARGEST_OUTPUT_BYTES:
                raise ValueError(f"at most {LARGEST_OUTPUT_BYTES:,} bytes fit")
            return fits

        more = (self.left or 1) - 1
        times = "once more" if more == 1 else f"{more} more times"
        last = f"It is the last of {self._rounds} that are asked about."
        return GatedCall(
            kind="output",
            agent_path=path,
            toolset="",
            tool="review",
            description=_DESCRIPTION,
            call_id="",
            arguments={_OUTPUT: output},
            metadata=None,
            check=check,
            question=f"Is this the run's output? {f'It can be sent back {times}.' if more else last}",
            ruled=self._ruled,
        )

    def _ruled(self, request_id: str, ruling: Ruling, by: str) -> None:
        self._by = by
