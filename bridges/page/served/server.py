"""The running page: reads the cluster on request, or by itself, and answers from the latest result."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from stratalog.bridges.page.activity import Row
from stratalog.bridges.page.content import content, unopened_content
from stratalog.bridges.page.document import document
from stratalog.bridges.page.report import read_history
from stratalog.bridges.page.served.access import Access, check_token
from stratalog.bridges.page.served.answers import Answers, Shown
from stratalog.bridges.page.served.lookups import Lookups
from stratalog.bridges.page.served.samples import Samples, figures_of
from stratalog.bridges.server import ClusterServer
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.health.finding import HealthReport, unopened
from stratalog.engine.health.health import examine
from stratalog.engine.quorum.client import MetadataClient
from stratalog.jobs.http_server import HttpServer, host_and_port, is_loopback, tls_context
from stratalog.partitions.errors import InvalidCallError, StratalogError
from stratalog.partitions.printable import printable

LISTEN = "127.0.0.1:8080"

_log = logging.getLogger("stratalog.page")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """The address to listen on, and the allowed readers. Raises: InvalidCallError, also for an address that other
    machines can reach, if it has neither a token nor a CA of clients.
    """

    listen: str = LISTEN
    """``host:port``; port 0 picks a free one."""
    token: str | None = field(default=None, repr=False)
    """The token that readers must enter once; None: no token is required."""
    tls_cert: str | None = None
    tls_key: str | None = None
    """Files in PEM; without them the page is served as plain HTTP."""
    tls_client_ca: str | None = None
    """The CA of the certificates that readers must show."""
    every_s: float | None = 30.0
    """Seconds between the server's own reads of the cluster; None: the caller calls ``look``."""

    def __post_init__(self) -> None:
        host, _ = host_and_port(self.listen)
        check_token(self.token)
        if self.tls_cert is None and (self.tls_key or self.tls_client_ca):
            raise InvalidCallError("a key or a CA of clients needs a certificate (tls_cert)")
        if self.every_s is not None and self.every_s <= 0:
            raise InvalidCallError(f"every_s = {self.every_s}: it must be above 0")
        if not is_loopback(host) and self.token is None and self.tls_client_ca is None:
            raise InvalidCallError(
                f"{self.listen}: other machines reach this address, and the page shows records. Require a token "
                "(token, --page-token-file) or certificates of readers (tls_cert with tls_client_ca, "
                "--page-tls-cert with --page-tls-client-ca), or listen on 127.0.0.1"
            )


class PageServer(ClusterServer):
    """The page of a cluster, served until the server is closed; use it in a ``with``."""

    def __init__(
        self,
        metadata: MetadataClient,
        storage: Storage,
        execution: Execution,
        memory: Memory,
        *,
        options: PageOptions,
        history: Callable[[], Sequence[Row]],
    ) -> None:
        """Start the server. It listens when this returns, but has not read the cluster yet. Raises:
        InvalidCallError for an address that cannot be used, or for files that are not certificates.
        """
        host, port = host_and_port(options.listen)
        tls = None
        if options.tls_cert is not None:
            tls = tls_context(options.tls_cert, options.tls_key, options.tls_client_ca)
        self._examine = partial(examine, metadata, storage, execution, memory)
        self._file, self._clock = storage.file, execution.clock
        self._history, self._every_s = history, options.every_s
        self._samples = Samples()
        self._content: Mapping[str, Any] | None = None
        self._text = ""
        self._looks = 0
        self._id = storage.new_id()
        self._shown: Shown | None = None
        self._looking, self._lock = threading.RLock(), threading.Lock()
        self._closed = threading.Event()
        answers = _Deferred()
        try:
            self._http = HttpServer(answers, host, port, tls)
        except OSError as error:
            raise InvalidCallError(f"{options.listen}: cannot listen there: {error.strerror or error}") from error
        shown_host = f"[{host}]" if ":" in host else host
        secure = options.tls_cert is not None
        access = Access(self._http.port, is_loopback(host), options.token, secure, shown_host)
        answers.app = Answers(access, self._current, Lookups(metadata, storage, execution.clock, memory))
        self.url = f"{'http' if tls is None else 'https'}://{shown_host}:{self._http.port}/"
        """The address of the page; it does not contain the token."""
        if self._every_s is not None:
            threading.Thread(target=self._look_again, name="page", daemon=True).start()

    @property
    def is_running(self) -> bool:
        """Whether the server still answers."""
        return self._http.is_running

    def look(self) -> HealthReport:
        """Read the cluster now; readers get the result. Returns the health of the cluster. If the read fails, the
        page says so, and keeps showing the previous result.

        Raises: see ``Cluster.health``.
        """
        with self._looking:
            try:
                examined = self._examine()
            except StratalogError as error:
                self._failed(error)
                raise
            rows, unread = read_history(self._history)
            found = content(examined, rows, unread, self._file.cluster_id)
            self._samples.add(found["now_ms"], figures_of(found))
            self._show(found, str(examined.report), None)
        return examined.report

    def _failed(self, error: StratalogError) -> None:
        found, text = self._content, self._text
        message = printable(f"{error.code}: {error}")
        if found is None:
            health = unopened(self._file.path, error, self._clock.now_ms())
            found, text = unopened_content(health, self._file.cluster_id), str(health)
        self._show(found, text, {"at_ms": self._clock.now_ms(), "what": message})

    def _show(self, found: Mapping[str, Any], text: str, error: Mapping[str, Any] | None) -> None:
        with self._lock:
            self._looks += 1
            live = {
                "tag": f"{self._id}-{self._looks}",
                "error": error,
                "samples": self._samples.shown(),
            }
            self._content, self._text = {**found, "live": live}, text
            self._shown = None

    def _current(self) -> Shown:
        """The page of the last read of the cluster; it is made when it is first requested."""
        with self._looking if self._content is None else nullcontext():
            if self._content is None:
                with suppress(StratalogError):
                    self.look()
        with self._lock:
            if self._shown is None:
                assert self._content is not None
                found = dict(self._content)
                text = json.dumps(found, allow_nan=False, separators=(",", ":"))
                self._shown = Shown.of(found["live"]["tag"], text, document(found, self._text, live=True))
            return self._shown

    def _look_again(self) -> None:
        while not self._closed.is_set():
            try:
                self.look()
            except StratalogError:
                pass  # the page shows the error
            except Exception:
                _log.exception("the page could not read the cluster's state")
            self._closed.wait(self._every_s)

    def close(self) -> None:
        """Stop serving."""
        self._closed.set()
        self._http.close()

    def wait(self) -> None:
        """Wait until the server is closed."""
        self._closed.wait()

    def __repr__(self) -> str:
        return f"PageServer({self.url!r})"


class _Deferred:
    """The application of a server whose port is known only once it listens."""

    app: Answers | None = None

    def __call__(self, environ: Any, start_response: Any) -> Any:
        if self.app is None:  # a request arrived before the application was set
            start_response("503 Service Unavailable", [("Retry-After", "1")])
            return [b""]
        return self.app(environ, start_response)
