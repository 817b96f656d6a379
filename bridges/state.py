"""The state of the cluster as a page, as methods of the cluster: ``cluster.report``, ``cluster.serve_page``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratalog.bridges.page.activity import Row
from stratalog.bridges.page.report import StatePage, report
from stratalog.engine.admin.history import EventFilter, history
from stratalog.engine.cluster.recorded import operation
from stratalog.engine.driver.context import Context

if TYPE_CHECKING:
    from stratalog.bridges.page.served.server import PageServer


class StatePages:
    """An open cluster, as those see it who look at the page of its state."""

    _context: Context

    @operation("report", leaves_event=False)
    def report(self) -> StatePage:
        """The state of the cluster as one page of HTML: health, topics, partitions and their tiers, brokers,
        groups, and what was done. It only reads, and costs what ``health`` costs.

            cluster.report().save("report.html")
        """
        return report(self._context, self._history)

    def serve_page(
        self,
        listen: str = "127.0.0.1:8080",
        *,
        token: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        tls_client_ca: str | None = None,
        every_s: float | None = 30.0,
    ) -> PageServer:
        """Serve the page of ``report``, read only. It reloads itself while somebody looks at it, and has what a
        file cannot have: a look at records, the versions of remote tables, and figures over time. It runs in
        threads of this process until it is closed::

            with cluster.serve_page("127.0.0.1:8080") as page:
                print(page.url)
                page.wait()

        It looks at the cluster each ``every_s`` seconds; None: when ``page.look()`` is called. Each look costs
        what ``health`` costs. Beyond loopback it demands a ``token``, or certificates that ``tls_client_ca`` has
        signed. See ``stratalog.bridges.page.served.server.PageOptions``.

        Raises: InvalidCallError, also for an address that is taken, or that other machines reach without either.
        """
        from stratalog.bridges.page.served.server import PageOptions, PageServer

        options = PageOptions(
            listen=listen,
            token=token,
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_client_ca=tls_client_ca,
            every_s=every_s,
        )
        return PageServer(self._context, options, self._history)

    def _history(self) -> Sequence[Row]:
        return history(self._context, EventFilter(None, None, None), limit=10_000).rows
