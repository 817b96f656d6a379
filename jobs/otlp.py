"""Push the metrics of an ``Exposition`` by OTLP over HTTP: gauges as gauges, counters as cumulative sums.

The exporter is OpenTelemetry's own, with its settings from the environment: ``OTEL_EXPORTER_OTLP_ENDPOINT``,
``..._HEADERS``, ``..._CERTIFICATE`` and others.
"""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.metrics_core import Metric as Family

from stratalog.jobs.exposition import Exposition
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import StorageError
from stratalog.partitions.store.address import parse_server
from stratalog.partitions.version import VERSION

_NS = 1_000_000


class OtlpPush:
    """Pushes an exposition to a receiver; each push contains all metrics."""

    def __init__(self, shown: Exposition, clock: Clock, endpoint: str | None) -> None:
        """``endpoint`` is the address for metrics, such as ``http://collector:4318/v1/metrics``. None: the address
        from the environment, otherwise OpenTelemetry's default.
        """
        if endpoint is not None:
            parse_server(endpoint, "--otlp")
        self._shown, self._clock = shown, clock
        self._where = endpoint or "the receiver named in the environment"
        self._began_ns = clock.now_ms() * _NS
        self._exporter = OTLPMetricExporter(endpoint=endpoint)

    def push(self) -> None:
        """Push the current metrics. Raises: StorageError if the receiver did not accept the metrics."""
        now_ns = self._clock.now_ms() * _NS
        metrics = [self._metric(one, now_ns) for one in self._shown.registry.collect()]
        scope = ScopeMetrics(InstrumentationScope("stratalog", VERSION), [one for one in metrics if one], "")
        resource = Resource({"service.name": "stratalog", "service.version": VERSION})
        given = MetricsData([ResourceMetrics(resource, [scope], "")])
        if self._exporter.export(given) is not MetricExportResult.SUCCESS:
            raise StorageError(f"metrics were not pushed: {self._where} did not accept them")

    def _metric(self, family: Family, now_ns: int) -> Metric | None:
        counts = family.type == "counter"
        points = [
            NumberDataPoint(dict(one.labels), self._began_ns if counts else 0, now_ns, float(one.value))
            for one in family.samples
            if not one.name.endswith("_created")
        ]
        if not points:
            return None
        of = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True) if counts else Gauge(points)
        return Metric(family.name, family.documentation, "", of)
