"""Where a worker's metrics go: Temporal's own, and the few of Interlock's."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from interlock.contracts import names
from interlock.contracts.errors import MisconfiguredError

if TYPE_CHECKING:
    from temporalio.runtime import OpenTelemetryConfig, PrometheusConfig

    from interlock.settings import Settings

_DEFAULT_INTERVAL_MILLISECONDS = "60000"
_WAITS = [1.0, 10.0, 60.0, 600.0, 3_600.0, 21_600.0, 86_400.0, 259_200.0, 604_800.0]


def metrics_to(
    settings: Settings, environment: Mapping[str, str]
) -> tuple[str, PrometheusConfig | OpenTelemetryConfig] | None:
    """Where metrics go, in words and for Temporal's runtime; None for nowhere.

    At `metrics_address` Prometheus gets them. Without one they are sent by OTLP when OpenTelemetry's own variables name
    an endpoint.
    """
    from temporalio.runtime import PrometheusConfig

    buckets = {names.METRIC_APPROVAL_WAIT: _WAITS}
    if settings.metrics_address:
        return (
            f"INTERLOCK_METRICS_ADDRESS={settings.metrics_address}",
            PrometheusConfig(
                settings.metrics_address.replace("localhost:", "127.0.0.1:"),
                counters_total_suffix=True,
                unit_suffix=True,
                durations_as_seconds=True,
                histogram_bucket_overrides=buckets,
            ),
        )
    off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    endpoint = environment.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "")
    base = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    if off or environment.get("OTEL_METRICS_EXPORTER", "otlp") != "otlp" or not (endpoint or base):
        return None
    return _by_otlp(environment, endpoint, base, buckets)


def _by_otlp(
    environment: Mapping[str, str], endpoint: str, base: str, buckets: Mapping[str, list[float]]
) -> tuple[str, OpenTelemetryConfig]:
    from temporalio.runtime import OpenTelemetryConfig

    grpc = environment.get("OTEL_EXPORTER_OTLP_PROTOCOL") == "grpc"
    url = endpoint or (base if grpc else f"{base.rstrip('/')}/v1/metrics")
    interval = environment.get("OTEL_METRIC_EXPORT_INTERVAL") or _DEFAULT_INTERVAL_MILLISECONDS
    if not interval.isdecimal() or int(interval) == 0:
        raise MisconfiguredError(f"OTEL_METRIC_EXPORT_INTERVAL={interval} is no number of milliseconds above 0.")
    return (
        f"OTLP endpoint {url}",
        OpenTelemetryConfig(
            url,
            headers=_pairs(environment.get("OTEL_EXPORTER_OTLP_HEADERS", "")),
            metric_periodicity=timedelta(milliseconds=int(interval)),
            durations_as_seconds=True,
            http=not grpc,
            histogram_bucket_overrides=buckets,
        ),
    )


def _pairs(text: str) -> dict[str, str]:
    from urllib.parse import unquote

    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}
