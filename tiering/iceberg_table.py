"""Lists the segments of a remote log in an Iceberg table of a user's catalog: the same files, without a copy.

The Delta table is authoritative, and the Iceberg table follows it. Each change is one Iceberg snapshot that adds
new segments, and removes segments that the remote log no longer lists. The snapshot's summary has the version of
the Delta table, and the offsets of each partition.

1. Read the Iceberg table.
2. Read the Delta table, which is at least as new as the one of step 1.
3. Commit the next snapshot, if no writer has.
4. Whatever the answer, go to 1.

A commit builds on a snapshot that was read before the Delta table. So concurrent or late jobs never set the table
back.

Segments have no field ids, so the table has Iceberg's name mapping. Iceberg must not delete segments of the log:
``gc.enabled`` is false, and ``expire`` deletes old snapshots with Iceberg's own files only. ``delete_history``
deletes the snapshots that may have erased values (``iceberg_history``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import msgspec
import pyarrow as pa

from stratalog.partitions.errors import InvalidCallError, InvalidConfigError, StorageError, StratalogError
from stratalog.partitions.printable import printable
from stratalog.partitions.store.address import OBJECT_SCHEMES
from stratalog.partitions.store.protocol import StoreOptions
from stratalog.partitions.store.reached import Reached, reached
from stratalog.partitions.store.resolving import azure_connection_string
from stratalog.tiering.remote_file import read_remote
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Snapshot

    from stratalog.tiering.delta_reader import DeltaTopicReader
    from stratalog.tiering.iceberg_files import TableFiles
    from stratalog.tiering.iceberg_history import IcebergContents, IcebergHistory


T = TypeVar("T")

COMMIT_ATTEMPTS = 10
"""The number of tries after lost races, and after commits without an answer."""

_OVERTAKEN_ATTEMPTS = 3
MAIN = "main"
"""The branch that readers read."""
_DEFAULTS = StoreOptions()
TOPIC, TOPIC_ID = "stratalog.topic", "stratalog.topic_id"
VERSION, OFFSETS = "stratalog.delta_version", "stratalog.offsets"
_NAME_MAPPING = "schema.name-mapping.default"
_PROPERTIES = {
    "gc.enabled": "false",
    "commit.retry.num-retries": "0",  # after a lost race decide again, from the Delta table
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}


class IcebergTable:
    """The Iceberg table of one topic's segments."""

    def __init__(
        self, name: str, *, topic: str, topic_id: str, uri: str = "", options: StoreOptions = _DEFAULTS
    ) -> None:
        """``name``: the catalog in pyiceberg's configuration, a namespace, and the table, separated by dots.
        Accesses no storage. ``uri`` is the address of the remote tier, which is reached with ``options``.

        Raises: InvalidCallError if pyiceberg is not installed.
        """
        try:
            import pyiceberg  # noqa: F401 - an extra
        except ModuleNotFoundError as error:
            raise InvalidCallError(
                f"topic {topic!r} has an Iceberg table (remote.iceberg.table): install stratalog[iceberg]"
            ) from error
        self.name = name
        self._catalog, _, self._identifier = name.partition(".")
        self._topic, self._topic_id = topic, topic_id
        self._uri, self._options = uri, options

    def follow(self, remote: DeltaTopicReader, schema: pa.Schema) -> bool:
        """Make the table list exactly the segments of the remote log; ``schema`` is the topic's physical schema.
        Creates a missing table. Returns whether a snapshot was committed.

        Raises: InvalidConfigError for a table of another topic; StorageError when the catalog or its storage
            fails, or other writers always came first; see ``load``.
        """
        return self._retried("bring up to date", lambda: self._follow(remote, schema))

    def _follow(self, remote: DeltaTopicReader, schema: pa.Schema) -> bool:
        table, own = self._open(schema)
        held = _files(table)
        log = remote.load()
        wanted = {remote.remote.uri_of(remote.path(segment)): segment for segment in log.all_segments()}
        if held.keys() == wanted.keys():
            return False
        for address in wanted.keys() - held.keys():  # reads each file within bounds, before pyiceberg reads it
            read_remote(remote.remote, remote.folder, wanted[address])
        own.allow(wanted)
        self._commit(table, log, held, wanted, schema)
        return True

    def _retried(self, what: str, attempt: Callable[[], T]) -> T:
        """Try until no other writer comes first. After a commit without an answer, the next attempt reads in the
        table whether the commit has landed. While a snapshot is read, its files may be deleted, if it is no longer
        the current one."""
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

        for left in reversed(range(COMMIT_ATTEMPTS)):
            with self._translated(what):
                try:
                    return attempt()
                except (CommitFailedException, CommitStateUnknownException):
                    continue
                except FileNotFoundError:
                    if not left:
                        raise
        raise StorageError(f"the Iceberg table {self.name}: other writers were faster {COMMIT_ATTEMPTS} times")

    def expire(self, before_ms: int) -> int:
        """Expire older snapshots, except the current one, and delete the Iceberg files that only they use. Returns
        the number of expired snapshots; 0 without a table.

        Raises: see ``follow``.
        """
        from pyiceberg.exceptions import NoSuchTableError

        from stratalog.tiering.iceberg_files import guard  # imported here, because it needs pyiceberg

        with self._translated("expire snapshots of"):
            try:
                table = self._catalog_of().load_table(self._identifier)
            except NoSuchTableError:
                return 0
            self._check_ours(table)
            guard(table, self.name)
            kept = {ref.snapshot_id for ref in table.refs().values()}
            gone = [s for s in table.snapshots() if s.timestamp_ms < before_ms and s.snapshot_id not in kept]
            if not gone:
                return 0
            before = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=before_ms)
            litter = _metadata_files(table)
            table.maintenance.expire_snapshots().older_than(before).commit()
            left = self._catalog_of().load_table(self._identifier)
            guard(left, self.name)
            for path in litter - _metadata_files(left):
                table.io.delete(path)
            return len(gone)

    def follow_clean(self, remote: DeltaTopicReader, schema: pa.Schema) -> None:
        """Step 1 of ``iceberg_history``: ``follow``, and then commit a snapshot without changes, unless the
        current snapshot is clean. Raises: see ``follow``."""
        self.follow(remote, schema)
        self._retried("bring up to date", lambda: self._settle(remote, schema))

    def _settle(self, remote: DeltaTopicReader, schema: pa.Schema) -> None:
        table, _ = self._open(schema)
        if self._is_unclean(table, remote):
            _commit_unchanged(table)

    def delete_history(
        self, remote: DeltaTopicReader, schema: pa.Schema, *, settled_ms: int | None
    ) -> IcebergHistory:
        """Steps 3 to 7 of ``iceberg_history``: delete all snapshots and files of the table that may have values of
        segments which the Delta table no longer lists. Call ``follow`` first. Lists and manifests that were
        written after ``settled_ms`` are kept for the jobs that may commit them; None: none is kept.

        Raises: see ``follow``; InvalidCallError if the catalog's file system cannot list files.
        """
        for _ in range(_OVERTAKEN_ATTEMPTS):
            self.follow(remote, schema)
            found = self._retried("erase the history of", lambda: self._erased(remote, schema, settled_ms))
            if not found.overtaken:
                break
        return found

    def _erased(self, remote: DeltaTopicReader, schema: pa.Schema, settled_ms: int | None) -> IcebergHistory:
        """One attempt."""
        from pyiceberg.exceptions import CommitFailedException

        from stratalog.tiering import iceberg_history as history

        table, own = self._open(schema)
        before = own.walk()
        metadata = history.MetadataFiles.read(table, own, before)
        if metadata.of_others:
            before = {name: before[name] for name in before.keys() & history.named_by(table)}
        waiting = history.in_flight(table, own, before, metadata, settled_ms)
        before = {name: address for name, address in before.items() if name not in waiting}
        if self._is_unclean(table, remote) or history.unnamed(table, before, history.named_by(table)):
            _commit_unchanged(table)
            table, own = self._open(schema)
        unclean = history.unclean_snapshots(table, self._listed(remote), table.snapshots())
        kept, every = _kept(table), {snapshot.snapshot_id for snapshot in table.snapshots()}
        if gone := sorted(unclean - kept.keys()):
            try:
                table.maintenance.expire_snapshots().by_ids(gone).commit()
            except ValueError as error:  # another run has removed them from newer metadata
                raise CommitFailedException(str(error)) from error
        table, own = self._open(schema)
        present = {snapshot.snapshot_id for snapshot in table.snapshots()}
        if present != every.difference(gone) or _kept(table) != kept:
            raise CommitFailedException("another job has committed")
        doomed = history.unnamed(table, before, history.named_by(table))
        for name in doomed:
            with suppress(FileNotFoundError):  # another run has deleted it
                own.delete(before[name])
        after = own.walk()
        metadata, later = history.MetadataFiles.read(table, own, after), own.walk()
        location = table.metadata_location
        table, own = self._open(schema)
        if table.metadata_location != location:
            raise CommitFailedException("another job has committed, and may have named what was deleted")
        outdated = metadata.outdated(table, later)
        if metadata.pending.intersection(outdated):
            _commit_unchanged(table)
            raise CommitFailedException("another job is about to commit, and has lost the race now")
        for name in outdated:
            with suppress(FileNotFoundError):
                own.delete(after[name])
        left = metadata.left + history.unknown_files(table, after)
        for snapshot_id in sorted(unclean & kept.keys()):
            left.append((f"snapshot {snapshot_id}", _why_kept(kept[snapshot_id])))
        overtaken = any(kept[snapshot_id] == MAIN for snapshot_id in unclean & kept.keys())
        return history.IcebergHistory(
            files=len(doomed) + len(outdated),
            sequence_number=history.least_number(table),
            left=tuple(left),
            waiting=tuple(each for each in waiting if each in later),
            overtaken=overtaken,
        )

    def _is_unclean(self, table: Table, remote: DeltaTopicReader) -> bool:
        """Whether the current snapshot names files that the Delta table does not list now."""
        from stratalog.tiering.iceberg_history import unclean_snapshots

        present = table.current_snapshot()
        return present is not None and bool(unclean_snapshots(table, self._listed(remote), [present]))

    @staticmethod
    def _listed(remote: DeltaTopicReader) -> set[str]:
        """The addresses that the Delta table lists now. The Delta table is at least as new as an Iceberg table
        that was read before it."""
        return {remote.remote.uri_of(remote.path(segment)) for segment in remote.load().all_segments()}

    def contents(self) -> IcebergContents | None:
        """The segments that the metadata names; None without a table. Raises: see ``delete_history``."""
        from pyiceberg.exceptions import NoSuchTableError

        from stratalog.tiering.iceberg_files import guard
        from stratalog.tiering.iceberg_history import contents_of

        with self._translated("read the history of"):
            try:
                table = self._catalog_of().load_table(self._identifier)
            except NoSuchTableError:
                return None
            self._check_ours(table)
            return contents_of(table, guard(table, self.name))

    def drop(self) -> None:
        """Drop the table from the catalog, and keep the segments. Does nothing if there is no table, or if it
        belongs to another topic.

        Raises: StorageError.
        """
        from pyiceberg.exceptions import NoSuchTableError

        with self._translated("drop"):
            catalog = self._catalog_of()
            try:
                if catalog.load_table(self._identifier).properties.get(TOPIC_ID) == self._topic_id:
                    catalog.drop_table(self._identifier)
            except NoSuchTableError:
                return

    def _catalog_of(self) -> Catalog:
        """The catalog. If its configuration lacks settings for the remote tier's kind of storage, the catalog's
        own files use the settings of the remote tier.
        """
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog(self._catalog)
        prefixes = PREFIXES.get(self._uri.partition("://")[0], ())
        if not any(name.startswith(prefixes) for name in catalog.properties):
            catalog.properties = {**self._properties(), **catalog.properties}
        return catalog

    def _properties(self) -> dict[str, str]:
        return iceberg_properties(self._uri, self._options)

    def _open(self, schema: pa.Schema) -> tuple[Table, TableFiles]:
        from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
        from pyiceberg.io import load_file_io

        from stratalog.tiering.iceberg_files import guard

        catalog = self._catalog_of()
        try:
            table = catalog.load_table(self._identifier)
        except NoSuchTableError:
            catalog.create_namespace_if_not_exists(self._identifier.rpartition(".")[0])
            properties = {**_PROPERTIES, TOPIC: self._topic, TOPIC_ID: self._topic_id}
            try:
                table = catalog.create_table(self._identifier, schema, properties=properties)
            except TableAlreadyExistsError:
                table = catalog.load_table(self._identifier)
        self._check_ours(table)
        properties = self._properties()
        return table, guard(table, self.name, load_file_io(properties, self._uri) if properties else None)

    def _check_ours(self, table: Table) -> None:
        found = table.properties.get(TOPIC_ID)
        if found != self._topic_id:
            whose = f"the table of topic id {found!r}" if found else "not a table of stratalog"
            raise InvalidConfigError(
                f"the Iceberg table {self.name} is {whose}: give topic {self._topic!r} "
                "another remote.iceberg.table"
            )

    def _commit(
        self,
        table: Table,
        log: RemoteLog,
        held: Mapping[str, DataFile],
        wanted: Mapping[str, RemoteSegment],
        schema: pa.Schema,
    ) -> None:
        from pyiceberg.io.pyarrow import parquet_files_to_data_files

        new = sorted(wanted.keys() - held.keys())
        gone = sorted(held.keys() - wanted.keys())
        summary = {
            TOPIC: self._topic,
            TOPIC_ID: self._topic_id,
            VERSION: str(log.version),
            OFFSETS: msgspec.json.encode(
                {
                    partition: (segments[0].base_offset, segments[-1].next_offset)
                    for partition, segments in sorted(log.segments.items())
                    if segments
                }
            ).decode(),
        }
        with table.transaction() as change:
            _grow(change, schema)
            update = change.update_snapshot(snapshot_properties=summary)
            with update.overwrite() if gone else update.merge_append() as files:
                for path in gone:
                    files.delete_data_file(held[path])
                for added in parquet_files_to_data_files(table.io, change.table_metadata, iter(new)):
                    files.append_data_file(added)

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Translate any error of a catalog into StorageError."""
        try:
            yield
        except StratalogError:
            raise
        except Exception as error:
            first = next(iter(str(error).splitlines()), "")
            message = f"{type(error).__name__}: {printable(first)}"
            raise StorageError(f"cannot {what} the Iceberg table {self.name}: {message}") from None


def _grow(change: Transaction, schema: pa.Schema) -> None:
    """Add the fields of a grown schema to the table, and names for all its fields."""
    with change.update_schema() as fields:
        fields.union_by_name(schema)
    mapping = change.table_metadata.schema().name_mapping.model_dump_json()
    if change.table_metadata.properties.get(_NAME_MAPPING) != mapping:
        change.set_properties({_NAME_MAPPING: mapping})


def _files(table: Table) -> dict[str, DataFile]:
    """The data files of the table's current snapshot, by address."""
    return {task.file.file_path: task.file for task in table.scan().plan_files()}


def _commit_unchanged(table: Table) -> None:
    """Commit a snapshot that lists the same files as the current one. pyiceberg leaves out manifests that have
    only entries of deleted files."""
    last = table.current_snapshot()
    summary = {} if last is None else _ours(last)
    with (
        table.transaction() as change,
        change.update_snapshot(snapshot_properties=summary).fast_append(),
    ):
        pass


def _ours(snapshot: Snapshot) -> dict[str, str]:
    """The properties of a snapshot that describe the listed files."""
    found = {} if snapshot.summary is None else snapshot.summary.additional_properties
    return {name: found[name] for name in (TOPIC, TOPIC_ID, VERSION, OFFSETS) if name in found}


def _kept(table: Table) -> dict[int, str]:
    """The ids of the snapshots that branches and tags keep, each with the name of a branch or tag: main if it
    keeps the snapshot."""
    refs = sorted(table.refs().items(), key=lambda named: (named[0] == MAIN, named[0]))
    return {ref.snapshot_id: name for name, ref in refs}


def _why_kept(ref: str) -> str:
    """Why a snapshot that may have erased values is left."""
    if ref == MAIN:
        return (
            "another program has changed its manifests: drop the table with its files; `vacuum` creates it again"
        )
    return f"the tag or branch {printable(ref)!r} keeps it: remove the tag or branch, then erase again"


def _metadata_files(table: Table) -> set[str]:
    """The lists and manifests of all snapshots."""
    found: set[str] = set()
    for snapshot in table.snapshots():
        found.add(snapshot.manifest_list)
        found |= {manifest.manifest_path for manifest in snapshot.manifests(table.io)}
    return found


PREFIXES = {"s3": ("s3.", "client."), "az": ("adls.",), "abfss": ("adls.",), "gs": ("gcs.",)}
"""Name prefixes of the properties, by URI scheme."""
_NEVER_MS = "253402300799000"


def iceberg_properties(uri: str, options: StoreOptions) -> dict[str, str]:
    """Properties of a pyiceberg file system for objects below ``uri``; empty for a folder. Make them for one call
    and never store them, because they contain credentials.

    Raises: StorageAuthenticationError, UnsupportedStoreError.
    """
    scheme = uri.partition("://")[0]
    if scheme != "s3" and scheme not in OBJECT_SCHEMES:
        return {}
    return properties_of(reached(uri, options))


def properties_of(here: Reached) -> dict[str, str]:
    """All properties that pyiceberg would otherwise read from its environment, except Google's credentials file
    and the machine's identity, which brokers use too.
    """
    options, shown = here.options, here.shown
    if here.scheme == "s3":
        return {
            "s3.endpoint": here.server,
            "s3.force-virtual-addressing": "false",
            "s3.access-key-id": shown["access_key"],
            "s3.secret-access-key": shown["secret_key"],
            **({"s3.session-token": shown["token"]} if "token" in shown else {}),
            **({"s3.region": options.region} if options.region else {}),
        }
    if here.scheme == "gs":
        token = "anonymous" if here.plain else shown.get("token")
        of_token = {"gcs.oauth2.token": token, "gcs.oauth2.token-expires-at": _NEVER_MS} if token else {}
        return {"gcs.service.host": here.server, **of_token}
    return _of_azure(here, str(options.account), shown)


def _of_azure(here: Reached, account: str, shown: Mapping[str, str]) -> dict[str, str]:
    scheme, _, host = here.server.partition("://")
    found = {"adls.account-name": account, "adls.account-host": host}
    if "token" in shown:
        return found | {"adls.token": shown["token"]}
    if not shown:
        return found | {"adls.anon": "true"}
    return found | {
        "adls.connection-string": azure_connection_string(here.server, account, shown),
        "adls.blob-storage-authority": host.partition("/")[0],
        "adls.blob-storage-scheme": scheme,
        **{f"adls.{name.replace('_', '-')}": value for name, value in shown.items()},
    }
