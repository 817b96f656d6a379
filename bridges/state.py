"""The state of the cluster as a page, as a method of the cluster: ``cluster.report``."""

from __future__ import annotations

from stratalog.bridges.page.report import StatePage, report
from stratalog.engine.admin.history import EventFilter, history
from stratalog.engine.cluster.recorded import operation
from stratalog.engine.driver.opening import Ports


class StatePages:
    """An open cluster, as those see it who look at the page of its state."""

    _ports: Ports

    @operation("report", leaves_event=False)
    def report(self) -> StatePage:
        """The state of the cluster as one page of HTML: health, topics, partitions and their tiers, brokers,
        groups, and what was done. It only reads, and costs what ``health`` costs.

            cluster.report().save("report.html")
        """
        return report(
            self._ports.metadata,
            self._ports.storage,
            self._ports.execution,
            self._ports.memory,
            lambda: (
                history(
                    self._ports.metadata,
                    self._ports.storage,
                    self._ports.execution,
                    self._ports.memory,
                    EventFilter(None, None, None),
                    limit=10_000,
                ).rows
            ),
        )
