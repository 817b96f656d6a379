"""The overview of a cluster in a notebook: health and topics.

The overview lists each broker once, like ``health``. A notebook renders the overview for every cell whose last
expression is the cluster, so it takes at most ``DEADLINE_S``. The overview shows errors as text, and writes
nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from stratalog.engine.admin.describe_cluster import describe_topics
from stratalog.engine.driver.folding import folded
from stratalog.engine.driver.opening import Ports, local_tasks
from stratalog.engine.driver.report import show
from stratalog.engine.driver.tasks import Silent
from stratalog.engine.health.health import health
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.html_table import head_line, html_table, marked_line

DEADLINE_S = 10.0
_COLUMNS = ("topic", "partitions", "replication_factor", "key", "value", "configs")


class Overview:
    """The overview of one cluster. Only one runs at a time."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports.with_tasks(local_tasks(), progress=Silent())
        self._looking = threading.Lock()

    def html(self, title: str, deadline_s: float = DEADLINE_S) -> str:
        """Return the overview as HTML, or the reason why there is no overview. Never raises."""
        head = head_line(title)
        if not self._looking.acquire(blocking=False):
            return head + _missing("the previous overview is still running")
        found: dict[str, str] = {}

        def look() -> None:
            try:
                found["topics"] = _rendered("topics", lambda: _topics(self._ports))
                found["health"] = _rendered(
                    "health", lambda: replace(health(*self._ports.all), totals={})._repr_html_()
                )
            finally:
                self._looking.release()

        thread = threading.Thread(target=look, name="stratalog-overview", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system gives this process no more threads
            self._looking.release()
            return head + _missing(str(error))
        thread.join(deadline_s)
        late = _missing(f"no answer within {deadline_s:g} s")
        return head + found.get("health", late) + found.get("topics", "")


def _missing(why: str) -> str:
    return marked_line("warn", "health", f"{why}: call cluster.health() to wait for the answer")


def _rendered(what: str, render: Callable[[], str]) -> str:
    """Return the rendered part, or the text of the error that rendering raises."""
    try:
        return render()
    except StratalogError as error:
        return marked_line("bad", what, f"{error.code}: {error}")
    except Exception as error:  # whatever fails, the cell must show the cluster
        return marked_line("bad", what, f"{type(error).__name__}: {error}")


def _topics(ports: Ports) -> str:
    rows = folded(describe_topics(*ports.for_tasks).rows)
    texts = [[show(row.get(name)) for name in _COLUMNS] for row in rows]
    return html_table(_COLUMNS, texts, numbers=("partitions", "replication_factor"))
