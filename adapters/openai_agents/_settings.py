"""Model settings that say how a call is made: the step makes it so, and not the SDK's loop in the workflow."""

import dataclasses
from collections.abc import Mapping
from datetime import timedelta

from agents import ModelSettings
from agents.retry import ModelRetryBackoffSettings
from temporalio.common import RetryPolicy

from interlock.contracts.errors import KEPT_ELSEWHERE, MisconfiguredError

_TIMEOUT = "interlock_timeout"
_LEAST = timedelta(milliseconds=1)
"""Temporal takes no interval of nothing."""


def for_loop(settings: ModelSettings) -> ModelSettings:
    """Settings as the SDK's loop gets them: it would count a `timeout` while the run is stuck or asks a person, and try
    a step again that has been tried again already. It merges the rest, from the agent, the configuration and the run.
    """
    retry, extra = settings.retry, settings.extra_args
    if retry is not None:
        retry = dataclasses.replace(retry, policy=None)
    if settings.timeout is not None:
        extra = {**(extra or {}), _TIMEOUT: settings.timeout}
    return dataclasses.replace(settings, retry=retry, timeout=None, extra_args=extra)


def for_step(settings: ModelSettings) -> ModelSettings:
    """Settings that the loop has merged, as the step gets them."""
    extra = dict(settings.extra_args or {})
    if _TIMEOUT not in extra:
        return settings
    timeout = extra.pop(_TIMEOUT)
    return dataclasses.replace(settings, timeout=timeout, extra_args=extra or None)


def policy_of(settings: ModelSettings, of_app: RetryPolicy) -> RetryPolicy:
    """How often a call with these settings is tried. What they do not say, the app's policy does."""
    retry = settings.retry
    if retry is None:
        return of_app
    policy, backoff = of_app, _backoff(settings)
    if retry.max_retries is not None:
        policy = dataclasses.replace(policy, maximum_attempts=max(retry.max_retries, 0) + 1)
    if backoff.multiplier is not None:
        policy = dataclasses.replace(policy, backoff_coefficient=backoff.multiplier)
    first, longest = policy.initial_interval, policy.maximum_interval
    if backoff.initial_delay is not None:
        first = max(timedelta(seconds=backoff.initial_delay), _LEAST)
        longest = longest and max(longest, first)
    if backoff.max_delay is not None:
        longest = max(timedelta(seconds=backoff.max_delay), _LEAST)
        first = min(first, longest)
    return dataclasses.replace(policy, initial_interval=first, maximum_interval=longest)


def check_settings(settings: ModelSettings | None, whose: str) -> None:
    """Raise MisconfiguredError for settings that no run can have. whose: for people."""
    if settings is None:
        return
    for extra in (settings.extra_args, settings.extra_body):
        if isinstance(extra, Mapping) and extra.get("conversation") is not None:
            raise MisconfiguredError(f"{whose} asks for a conversation in its model settings: {KEPT_ELSEWHERE}")
    multiplier = _backoff(settings).multiplier
    if multiplier is not None and multiplier < 1:
        raise MisconfiguredError(
            f"{whose} has retry settings whose waits grow by {multiplier:g}, and become shorter: the multiplier has to "
            "be 1 or more."
        )


def _backoff(settings: ModelSettings) -> ModelRetryBackoffSettings:
    backoff = settings.retry.backoff if settings.retry else None
    return backoff if isinstance(backoff, ModelRetryBackoffSettings) else ModelRetryBackoffSettings(**(backoff or {}))
