"""The operation ``report``, and its page as an object."""

from __future__ import annotations

import html
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from stratalog.bridges.page.activity import Row
from stratalog.bridges.page.content import content, unopened_content
from stratalog.bridges.page.document import document
from stratalog.engine.config.cluster_file import ClusterFile
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.health.finding import HealthReport
from stratalog.engine.health.health import examine
from stratalog.engine.quorum.client import MetadataClient
from stratalog.partitions.errors import InvalidCallError, StratalogError
from stratalog.partitions.store import open_store
from stratalog.partitions.store.address import parse_address


@dataclass(frozen=True, slots=True)
class StatePage:
    """The state of a cluster as one page. A notebook displays it."""

    html: str
    """The complete document, which loads nothing."""
    health: HealthReport
    """The health report at the top of the page."""
    file: ClusterFile

    def save(self, target: str | os.PathLike[str]) -> str:
        """Write the page to a file, or to an address such as ``s3://bucket/report.html``, replacing an older one
        atomically. For an address, the connection settings are those of the cluster file for that kind of storage.
        Returns the place.

        Raises: InvalidCallError for a place that cannot be written or is inside a root of the cluster;
            StorageError kinds for a bucket.
        """
        address = parse_address(os.fspath(target), "the place of the page")
        given = str(address)
        if address.is_folder:
            path = os.path.abspath(given)
            folder, name = os.path.split(path)
            self._keep_out(f"file://{path}")
            self._keep_out(f"file://{os.path.join(os.path.realpath(folder), name)}")
            try:
                _write(path, self.html)
            except OSError as error:
                raise InvalidCallError(
                    f"the page cannot be written to {path}: {error.strerror}; name another file"
                ) from error
            return path
        folder, _, name = given.rpartition("/")
        if not address.path or os.fspath(target).endswith("/"):
            raise InvalidCallError(f"{given}: name the file, too, as in s3://bucket/report.html")
        self._keep_out(given)
        staged = open_store(folder, self.file.storage.options(folder)).stage_writer(name)
        try:
            staged.file.write(self.html.encode())
            staged.replace()
        except BaseException:
            with suppress(StratalogError):
                staged.abort()
            raise
        return given

    def _keep_out(self, address: str) -> None:
        """Refuse an address inside a root of the cluster. Raises: InvalidCallError."""
        for root in self.file.roots:
            behind_links = f"file://{os.path.realpath(root.removeprefix('file://'))}"
            if f"{address}/".startswith((f"{root}/", f"{behind_links}/")):
                raise InvalidCallError(
                    f"{address} is inside {root}, which belongs to the cluster: name another place"
                )

    def __repr__(self) -> str:
        return f"StatePage({self.file.cluster_id!r}, {len(self.html):,} characters)"

    def _repr_html_(self) -> str:
        """A separate frame in a notebook, whose scripts cannot access the notebook."""
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts" '
            'style="width:100%;height:48em;border:0"></iframe>'
        )


def report(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    history: Callable[[], Sequence[Row]] = tuple,
) -> StatePage:
    """Observe the cluster as ``health`` does, and return the page. ``history`` returns rows of
    ``Cluster.history``; if it fails, the page has the reason. Writes nothing. Raises: see ``examine``.
    """
    examined = examine(metadata, storage, execution, memory)
    rows, unread = read_history(history)
    found = content(examined, rows, unread, storage.file.cluster_id)
    return StatePage(document(found, str(examined.report)), examined.report, storage.file)


def read_history(history: Callable[[], Sequence[Row]]) -> tuple[Sequence[Row], str | None]:
    """The rows of the history, and the reason if they cannot be read."""
    try:
        return history(), None
    except StratalogError as error:
        return (), f"{error.code}: {error}"


def unopened_report(file: ClusterFile, health: HealthReport) -> StatePage:
    """The page of a cluster that cannot be opened."""
    return StatePage(document(unopened_content(health, file.cluster_id), str(health)), health, file)


def _write(path: str, text: str) -> None:
    """Write a file atomically, replacing an older one. Raises: OSError."""
    folder, name = os.path.split(path)
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{name}-") as scratch:
        written = os.path.join(scratch, name)
        with open(written, "w", encoding="utf-8") as page:
            page.write(text)
        os.replace(written, path)
