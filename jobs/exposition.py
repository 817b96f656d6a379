"""Metrics in OpenMetrics: gauges from the latest health check, counters of the work of ``maintain`` in this
process, and counters of the operations that the history lists since the process began.

Names are Kafka's if Kafka has them, with the prefix ``stratalog_``; dashes become underscores, and times are in
seconds. Each metric has the label ``cluster``. ``prometheus-client`` renders and serves the metrics.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, make_wsgi_app, write_to_textfile
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stratalog import Report
from stratalog.engine.health.finding import HealthReport
from stratalog.engine.state.operations import Event
from stratalog.jobs.http_server import HttpServer

_OF_OPERATIONS = ("requests", "read_bytes", "written_bytes", "records")
"""The totals of events that become counters."""
_COSTS = ("seconds", "requests", "read_bytes", "written_bytes")
_AGE, _MS = "-age-ms", "-ms"
FIGURES = {
    "OfflinePartitionsCount": "Partitions without an available leader",
    "UnderReplicatedPartitions": "Partitions with a replica that is not in sync",
    "UnderMinIsrPartitionCount": "Partitions with fewer replicas in sync than min.insync.replicas",
    "AtMinIsrPartitionCount": "Partitions with exactly min.insync.replicas replicas in sync",
    "GlobalTopicCount": "Topics, including internal ones",
    "GlobalPartitionCount": "Partitions, including those of internal topics",
    "ReassigningPartitions": "Partitions whose replicas are moving to other brokers",
    "PreferredReplicaImbalanceCount": "Partitions not led by their preferred replica",
    "ActiveBrokerCount": "Brokers in service",
    "FencedBrokerCount": "Brokers that are fenced or do not answer",
    "OfflineLogDirectoryCount": "Brokers whose root does not answer, is damaged, or was replaced",
    "number-of-voters": "Voters of the metadata",
    "high-watermark": "End offset of the committed metadata",
    "current-epoch": "Leader epoch of the metadata",
    "MaxLag": "Records that the slowest follower lacks",
    "replication-lag-records": "Records that followers lack, in total",
    "replication-lag-bytes": "Bytes that followers lack, in total",
    "replication-lag-ms": "Age of the oldest record that a follower lacks",
    "RemoteCopyLagBytes": "Bytes that are not in the remote tier yet",
    "remote-copy-lag-records": "Records that are not in the remote tier yet",
    "remote-copy-lag-ms": "Age of the oldest record that is not in the remote tier yet",
    "records-lag-max": "Greatest lag of a consumer group in a partition, in records",
    "records-lag-max-ms": "Greatest lag of a consumer group in a partition, in time",
    "PartitionsWithLateTransactionsCount": "Partitions with an open transaction that exceeded its timeout",
    "max-dirty-percent": "Greatest percentage of a compacted partition's sealed bytes that was never compacted",
    "time-since-last-run-ms": "Time since the compaction of maintain last began",
    "uncleanable-partitions-count": "Partitions whose compaction failed when it last ran",
    "scrub-lag-ms": "Time since the scrub became overdue",
}
"""The meaning of each figure of health, except the ages of steps."""


class Exposition(Collector):
    """The metrics of one cluster in this process, for a scraper. Thread-safe: each health check replaces all
    gauges in one step.
    """

    def __init__(self, cluster: str) -> None:
        """``cluster`` is its id."""
        self._cluster = cluster
        self._seen: HealthReport | None = None
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        labels = ["cluster", "step"]
        self._runs = Counter(
            "stratalog_step_runs", "Runs of a step of maintain", [*labels, "outcome"], registry=self.registry
        )
        self._failures = Counter(
            "stratalog_maintain_failures", "Failures in runs of maintain", ["cluster"], registry=self.registry
        )
        self._failures.labels(cluster)
        self._costs = {
            name: Counter(
                f"stratalog_step_{name}", f"{name} of a step of maintain", labels, registry=self.registry
            )
            for name in _COSTS
        }

        labels = ["cluster", "operation"]
        self._ended = Counter(
            "stratalog_operation_runs", "Operations of any driver", [*labels, "outcome"], registry=self.registry
        )
        self._did = {
            name: Counter(f"stratalog_operation_{name}", f"{name} of operations", labels, registry=self.registry)
            for name in ("seconds", *_OF_OPERATIONS)
        }

    def look(self, found: HealthReport | None) -> None:
        """Replace the gauges with those of this health check. None: the check has failed, and the gauges are
        unknown.
        """
        self._seen = found

    def add(self, report: Report) -> None:
        """Count a run of maintain."""
        self._failures.labels(self._cluster).inc(len(report.failures))
        for row in report.rows:
            step, outcome = str(row["step"]), str(row["outcome"])
            self._runs.labels(self._cluster, step, outcome.replace(" ", "_")).inc()
            for name, counter in self._costs.items():
                counter.labels(self._cluster, step).inc(float(row[name] or 0))

    def count(self, events: Iterable[Event]) -> None:
        """Count operations that have ended."""
        for event in events:
            if event.outcome is None:
                continue
            self._ended.labels(self._cluster, event.operation, event.outcome).inc()
            figures = {**event.totals, "seconds": (event.duration or 0) / 1000}
            for name, counter in self._did.items():
                counter.labels(self._cluster, event.operation).inc(figures.get(name, 0))

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        seen = self._seen
        yield self._gauge(
            "stratalog_up", "Whether the latest health check could open the cluster", seen is not None
        )
        if seen is None:
            return
        yield self._gauge("stratalog_healthy", "1 if nothing needs an operator, 0 otherwise", seen.ok)
        findings = GaugeMetricFamily(
            "stratalog_findings",
            "Objects that each finding of health names",
            labels=["cluster", "severity", "finding"],
        )
        for (severity, kind), count in seen.counted.items():
            findings.add_metric([self._cluster, severity, kind], count)
        yield findings
        ages = GaugeMetricFamily(
            "stratalog_step_age_seconds", "Time since a step of maintain last began", labels=["cluster", "step"]
        )
        for name, value in seen.totals.items():
            assert isinstance(value, int)
            if name.endswith(_AGE):
                ages.add_metric([self._cluster, name.removesuffix(_AGE)], value / 1000)
            elif name.endswith(_MS):
                yield self._gauge(
                    f"stratalog_{_plain(name.removesuffix(_MS))}_seconds", FIGURES[name], value / 1000
                )
            else:
                yield self._gauge(f"stratalog_{_plain(name)}", FIGURES[name], value)
        yield ages
        lags = GaugeMetricFamily(
            "stratalog_records_lag",
            "Kafka's records-lag, by group and topic",
            labels=["cluster", "group", "topic"],
        )
        for (group, topic), lag in seen.lags.items():
            lags.add_metric([self._cluster, group, topic], lag)
        yield lags
        disks = GaugeMetricFamily(
            "stratalog_log_dir_used_ratio", "Used fraction of a broker's file system", labels=["cluster", "broker"]
        )
        for broker, ratio in seen.used_ratios.items():
            disks.add_metric([self._cluster, str(broker)], ratio)
        yield disks

    def text(self) -> str:
        """Return all metrics as OpenMetrics text."""
        encode, _ = choose_encoder("application/openmetrics-text")
        return encode(self.registry).decode()

    def write(self, path: str) -> None:
        """Write a file for node_exporter's textfile collector; readers see the old file or the new one."""
        write_to_textfile(path, self.registry, tmpdir=os.path.dirname(path) or ".")

    def serve(self, host: str, port: int) -> int:
        """Answer scrapes at ``/metrics`` in a thread of this process. Returns the port; port 0 picks a free
        one. Raises: OSError."""
        return HttpServer(make_wsgi_app(self.registry), host, port).port

    def _gauge(self, name: str, doc: str, value: float) -> GaugeMetricFamily:
        found = GaugeMetricFamily(name, doc, labels=["cluster"])
        found.add_metric([self._cluster], value)
        return found


def _plain(name: str) -> str:
    return name.replace("-", "_")
