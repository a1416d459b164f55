"""OpenTelemetry: spans of runs, by Temporal's own integration and the tracer provider of this process.

Where no provider is set there are no spans, and nothing is loaded. The command line sets one when the environment asks
for it; a program sets its own, with `opentelemetry.trace.set_tracer_provider`, before it connects.
"""

import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from interlock.contracts.errors import MisconfiguredError

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_EXPORTER = "OTEL_TRACES_EXPORTER"
_SERVICE = "interlock"
_FLUSHED_WITHIN_SECONDS = 5


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether OpenTelemetry's own variables ask for spans: an OTLP endpoint, or `OTEL_TRACES_EXPORTER=otlp`.

    Raises MisconfiguredError when they ask for an exporter that there is not.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get(_EXPORTER, "").strip()
    if exporter not in ("", "none", "otlp"):
        raise MisconfiguredError(f"{_EXPORTER}={exporter} is not supported: it is otlp or none. No spans are sent.")
    return exporter != "none" and (exporter == "otlp" or any(environment.get(name) for name in _ENDPOINTS))


def set_up() -> None:
    """Give this process a tracer provider when its environment asks for spans and no provider is there yet.

    Raises MisconfiguredError, saying what is missing, when it cannot.
    """
    if not wanted(os.environ) or _provider() is not None:
        return
    try:
        from opentelemetry.trace import set_tracer_provider

        from interlock.spans import otlp_provider

        set_tracer_provider(otlp_provider(_SERVICE))
    except ModuleNotFoundError as error:
        extra = "opentelemetry-exporter-otlp-proto-grpc" if "grpc" in str(error.name) else '"interlock[otel]"'
        raise MisconfiguredError(
            f"The environment asks for spans (OTEL_...), but {error.name!r} is not installed: pip install {extra}. "
            "No spans are sent."
        ) from error


def interceptors() -> list[Any]:
    """What a Temporal client needs so that it and its workers make spans; empty where no provider is set."""
    provider = _provider()
    if provider is None:
        return []
    from interlock.spans import interceptor

    return [interceptor(provider)]


def flush() -> None:
    """Send what has not been sent yet, for at most 5 s."""
    provider = _provider()
    if provider is None or not hasattr(provider, "force_flush"):
        return
    # In a thread that nobody waits for any longer: an exporter without a collector tries again and again.
    sending = threading.Thread(target=provider.force_flush, name="interlock-flush", daemon=True)
    sending.start()
    sending.join(_FLUSHED_WITHIN_SECONDS)


def _provider() -> Any:
    """The tracer provider of this process; None when nobody has set one."""
    trace = sys.modules.get("opentelemetry.trace")  # Whoever has set one has loaded it.
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider) else provider
