"""The root of a broker: what it says of itself in ``broker.json``, what tells it from any other, how it becomes a
broker's.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from partitions import paths
from partitions.errors import (
    BrokerUnreachableError,
    CorruptionError,
    InconsistentClusterIdError,
    LogDirError,
)
from partitions.identity import NewId
from partitions.store.protocol import Store, StoredObject


class BrokerFile(msgspec.Struct, frozen=True, kw_only=True):
    """``broker.json``: whose root this is. A new directory id is a new incarnation of the root."""

    cluster_id: str
    broker_id: int
    directory_id: str
    version: int = 1


def read_broker_file(store: Store) -> BrokerFile | None:
    """What the root says it is; None when it says nothing (unmounted, or never formatted).

    Raises: CorruptionError when ``broker.json`` is there and cannot be understood.
    """
    try:
        data = store.read(paths.BROKER_FILE)
    except FileNotFoundError:
        return None
    return _decode_broker_file(store, data)


def _decode_broker_file(store: Store, data: bytes) -> BrokerFile:
    try:
        return msgspec.json.decode(data, type=BrokerFile)
    except ValueError as error:
        raise CorruptionError(f"{store.uri_of(paths.BROKER_FILE)} is no broker.json: {error}") from error


def root_identity(broker_file: StoredObject) -> str:
    """What tells this root from any other that ever has its address: its ``broker.json`` as an object, as
    ``Store.stat`` found it. The file is written once, with the root."""
    born = f"+{broker_file.born}" if broker_file.born else ""
    return f"{broker_file.version}@{broker_file.modified_ms}{born}"


@dataclass(frozen=True, slots=True)
class Root:
    """A root as it was found: what it says of itself, and its identity."""

    file: BrokerFile
    identity: str


def look_at_root(store: Store) -> Root | None:
    """The root now; None when it says nothing (unmounted, or never formatted). Asks for ``broker.json`` and
    reads the very object that was found.

    Raises: CorruptionError as ``read_broker_file``; SourceChangedError, StorageError.
    """
    try:
        found = store.stat(paths.BROKER_FILE)
    except FileNotFoundError:
        return None
    with store.open(found) as reader:
        data = reader.read()
    return Root(_decode_broker_file(store, data), root_identity(found))


def check_broker_file(found: BrokerFile, store: Store, cluster_id: str, broker_id: int) -> None:
    """Raises: InconsistentClusterIdError, LogDirError when the root belongs to somebody else."""
    if found.cluster_id != cluster_id:
        raise InconsistentClusterIdError(
            f"log dir {store.uri} of broker {broker_id} belongs to cluster {found.cluster_id!r}, "
            f"not to {cluster_id!r}: correct log_dir in the cluster file"
        )
    if found.broker_id != broker_id:
        raise LogDirError(
            f"log dir {store.uri} of broker {broker_id} belongs to broker {found.broker_id}: "
            "two brokers cannot share a log dir, correct log_dir in the cluster file"
        )


def format_root(store: Store, cluster_id: str, broker_id: int, new_id: NewId) -> BrokerFile:
    """Make the root a broker's, or find that it is already.

    Raises: LogDirError, UnsupportedStoreError, InconsistentClusterIdError; nothing is changed then.
    """
    found = read_broker_file(store)
    if found is None:
        store.check()
        fresh = BrokerFile(cluster_id=cluster_id, broker_id=broker_id, directory_id=new_id())
        if store.create(paths.BROKER_FILE, msgspec.json.encode(fresh)):
            return fresh
        found = read_broker_file(store)
        if found is None:
            raise BrokerUnreachableError(f"{store.uri}: broker.json appeared and vanished; try again")
    check_broker_file(found, store, cluster_id, broker_id)
    return found
