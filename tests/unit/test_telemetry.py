"""Who asks for spans and metrics, and where they go. Nobody gets any who did not ask."""

from datetime import timedelta

import pytest
from temporalio.runtime import OpenTelemetryConfig, PrometheusConfig

from interlock import MisconfiguredError, Settings, tracing
from interlock.cli._metrics import metrics_to

COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318/"}
NOWHERE = Settings(metrics_address="")


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        (COLLECTOR, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:4318/v1/metrics"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({**COLLECTOR, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**COLLECTOR, "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
    ],
)
def test_spans_are_sent_when_the_environment_asks_for_them(environment: dict[str, str], wanted: bool) -> None:
    assert tracing.wanted(environment) is wanted


def test_an_exporter_that_there_is_not_is_said() -> None:
    with pytest.raises(MisconfiguredError, match="OTEL_TRACES_EXPORTER=zipkin is not supported: it is otlp or none"):
        tracing.wanted({"OTEL_TRACES_EXPORTER": "zipkin"})


def test_without_a_provider_there_are_no_interceptors() -> None:
    assert tracing.interceptors() == []


@pytest.mark.parametrize(
    "environment",
    [{}, {**COLLECTOR, "OTEL_METRICS_EXPORTER": "none"}, {**COLLECTOR, "OTEL_SDK_DISABLED": "True"}],
    ids=str,
)
def test_metrics_go_nowhere_when_nobody_asks(environment: dict[str, str]) -> None:
    assert metrics_to(NOWHERE, environment) is None


def test_metrics_are_shown_to_prometheus_at_the_address_even_with_a_collector() -> None:
    found = metrics_to(Settings(metrics_address="localhost:9464"), COLLECTOR)

    assert found is not None
    assert isinstance(found[1], PrometheusConfig)
    assert found[1].bind_address == "127.0.0.1:9464"


@pytest.mark.parametrize(
    ("environment", "url", "http"),
    [
        (COLLECTOR, "http://127.0.0.1:4318/v1/metrics", True),
        ({**COLLECTOR, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http://127.0.0.1:4318/", False),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1/m"}, "http://127.0.0.1:1/m", True),
    ],
)
def test_metrics_are_sent_to_the_collector(environment: dict[str, str], url: str, http: bool) -> None:
    found = metrics_to(NOWHERE, environment)

    assert found is not None
    assert isinstance(found[1], OpenTelemetryConfig)
    assert (found[1].url, found[1].http) == (url, http)


def test_metrics_follow_the_headers_and_the_interval() -> None:
    more = {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x,team = a", "OTEL_METRIC_EXPORT_INTERVAL": "500"}
    found = metrics_to(NOWHERE, {**COLLECTOR, **more})

    assert found is not None
    assert isinstance(found[1], OpenTelemetryConfig)
    assert found[1].headers == {"authorization": "Bearer x", "team": "a"}
    assert found[1].metric_periodicity == timedelta(milliseconds=500)


def test_an_interval_that_is_none_is_said() -> None:
    with pytest.raises(MisconfiguredError, match="OTEL_METRIC_EXPORT_INTERVAL=often is no number of milliseconds"):
        metrics_to(NOWHERE, {**COLLECTOR, "OTEL_METRIC_EXPORT_INTERVAL": "often"})


def test_a_metrics_address_without_a_port_is_said() -> None:
    with pytest.raises(MisconfiguredError, match="INTERLOCK_METRICS_ADDRESS"):
        Settings.read(metrics_address="localhost")
