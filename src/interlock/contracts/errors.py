"""Three families of errors, by what whoever catches one does about it, and one root.

A message says what happened with the value, what is allowed and what to do next. It holds no prompt, no tool
argument and no key, because it ends up in histories and logs.
"""

KEPT_ELSEWHERE = (
    "what a conversation kept by the provider holds changes with each request, so a request that is made again after a "
    "crash would be in it twice. Go on from an answer (previous_response_id), or give the run a session."
)
"""Why no run takes part in a conversation that the model's provider keeps."""


class InterlockError(Exception):
    """The root of every error that Interlock raises on purpose."""


class MisconfiguredError(InterlockError):
    """A person has to edit something: code, settings, or what they asked for. Never retried."""


class UnavailableError(InterlockError):
    """Something that should be there did not answer. Trying again later can help."""


class RefusedError(InterlockError):
    """What was asked is not allowed, now or ever. Never retried."""


class InputDiffersError(RefusedError):
    """There is a run with this id, and it was started with another input. fields: the names of those that differ."""

    def __init__(self, message: str, *, fields: tuple[str, ...]) -> None:
        super().__init__(message)
        self.fields = fields


class RunFailedError(RefusedError):
    """A run ended without an output.

    workflow_id: the run. status: `failed`, `cancelled`, `terminated` or `timed_out`.
    error_type: the type that ended it, such as `UsageLimitExceeded`.
    """

    def __init__(self, message: str, *, workflow_id: str, status: str, error_type: str = "") -> None:
        super().__init__(message)
        self.workflow_id = workflow_id
        self.status = status
        self.error_type = error_type
