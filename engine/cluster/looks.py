"""Reports on a cluster, as methods: health, topics, history. The reports change nothing."""

from __future__ import annotations

from stratalog.engine.admin.describe import describe
from stratalog.engine.admin.history import NewEvents
from stratalog.engine.cluster.arguments import TopicNames, names
from stratalog.engine.cluster.recorded import operation
from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.report import Report
from stratalog.engine.health.finding import HealthReport
from stratalog.engine.health.health import health
from stratalog.engine.upkeep.healing import history as histories
from stratalog.engine.upkeep.replication.reassignments import reassignments
from stratalog.engine.upkeep.snapshots.read_snapshot import list_snapshots, metrics


class Looks:
    """An open cluster, for reports on its state."""

    _ports: Ports

    @operation("health", leaves_event=False)
    def health(self) -> HealthReport:
        """List everything that needs attention, one finding per row, with its severity (``error``: act now), its
        start, and the command that fixes the problem. ``totals`` has figures under Kafka's names. Findings of
        severity ``error`` are also failures of the report. The check changes nothing, and costs one listing of
        each broker. See ``stratalog.engine.health``.

            cluster.health().raise_for_failures()
        """
        return health(*self._ports.all)

    @operation("describe", leaves_event=False)
    def describe(self, topics: TopicNames = None) -> Report:
        """List every replica of the topics. Failures are partitions without a leader or below
        ``min.insync.replicas``, and uploads that fail repeatedly."""
        return describe(*self._ports.for_tasks, names(topics))

    def reassignments(self, topics: TopicNames = None) -> Report:
        """List the reassignments in progress, and the data that each new replica still lacks."""
        return reassignments(*self._ports.for_tasks, names(topics))

    def discarded(self, topics: TopicNames = None) -> Report:
        """List discarded files that are still in the folders of replicas."""
        return histories.history(*self._ports.for_tasks, names(topics))

    def new_events(self) -> NewEvents:
        """Return a function that returns the events of all drivers since its previous call. Its first call returns
        the events since ``new_events`` was called.
        """
        return NewEvents(*self._ports.for_records)

    def snapshots(self, topics: TopicNames = None) -> Report:
        """List every snapshot of every replica."""
        return list_snapshots(*self._ports.for_tasks, names(topics))

    def metrics(self) -> Report:
        """Report the metrics of KIP-630. ``GenSnapshotLatencyMs`` and ``LoadSnapshotLatencyMs`` are those of this
        driver. ``SnapshotSizeBytes`` and ``SnapshotLag`` cover the metadata log and every partition with
        snapshots."""
        return metrics(*self._ports.all)
