"""The state of the cluster as a page, as methods of the cluster: ``cluster.report``, ``cluster.serve_page``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratalog.bridges.page.activity import Row
from stratalog.bridges.page.report import StatePage, report
from stratalog.engine.admin.history import EventFilter, history
from stratalog.engine.cluster.recorded import operation
from stratalog.engine.driver.opening import Ports

if TYPE_CHECKING:
    from stratalog.bridges.page.served.server import PageServer


class StatePages:
    """The methods of an open cluster that make the page of the cluster's state."""

    _ports: Ports

    @operation("report", leaves_event=False)
    def report(self) -> StatePage:
        """Return the state of the cluster as one page of HTML: health, topics, partitions and their tiers,
        brokers, groups and past operations. The report writes nothing, and costs as much as ``health``.

            cluster.report().save("report.html")
        """
        return report(*self._ports.all, self._history)

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
        """Serve the page of ``report``, read only. The page reloads itself while it is viewed, and shows more than
        the file of ``report``: some records, the versions of remote tables, and figures over time. The server runs
        in threads of this process until it is closed::

            with cluster.serve_page("127.0.0.1:8080") as page:
                print(page.url)
                page.wait()

        The server reads the cluster every ``every_s`` seconds; None: only when ``page.look()`` is called. Each
        read costs as much as ``health``. On an address other than loopback, the page requires a ``token``, or
        certificates that ``tls_client_ca`` has signed. See ``stratalog.bridges.page.served.server.PageOptions``.

        Raises: InvalidCallError, also for an address that is taken, or that other machines can reach without a
            token or certificates.
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
        return PageServer(*self._ports.all, options=options, history=self._history)

    def _history(self) -> Sequence[Row]:
        return history(*self._ports.all, EventFilter(None, None, None), limit=10_000).rows
