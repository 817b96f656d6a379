"""The root of a broker: its description in ``broker.json``, its identity, and its formatting for a broker."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec

from stratalog.partitions import paths
from stratalog.partitions.bounded import decode_json, read_bounded, read_listed
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import (
    BrokerUnreachableError,
    CorruptionError,
    InconsistentClusterIdError,
    LogDirError,
)
from stratalog.partitions.identity import NewId, is_id
from stratalog.partitions.numbers import Int64
from stratalog.partitions.store.protocol import Store, StoredObject

BROKER_FILE_BYTES = 64 * 1024
"""The size limit of a ``broker.json``, which has some 150 bytes."""

_KIND = "broker"


class BrokerFile(msgspec.Struct, frozen=True, kw_only=True):
    """``broker.json``: the owner of a root. A new directory id is a new incarnation of the root."""

    cluster_id: str
    broker_id: Int64
    directory_id: str
    version: int = 1
    tag: str = ""
    """The signature with the cluster key (``check_signed``)."""


def read_broker_file(store: Store) -> BrokerFile | None:
    """The root's ``broker.json``; None if it does not exist (unmounted, or never formatted).

    Raises: CorruptionError if ``broker.json`` exists but is not valid.
    """
    try:
        data = read_bounded(store, paths.BROKER_FILE, BROKER_FILE_BYTES)
    except FileNotFoundError:
        return None
    return _decode_broker_file(store, data)


def _decode_broker_file(store: Store, data: bytes) -> BrokerFile:
    what = f"{store.uri_of(paths.BROKER_FILE)} is not a valid broker.json"
    found = decode_json(data, BrokerFile, what)
    if not is_id(found.directory_id):
        raise CorruptionError(f"{what}: {found.directory_id[:80]!r} is not a directory id")
    return found


def root_identity(broker_file: StoredObject) -> str:
    """An identity that distinguishes this root from every other root that ever has the same address: the identity
    of the object ``broker.json``, from ``Store.stat``. The file is written once, when the root is formatted.
    """
    born = f"+{broker_file.born}" if broker_file.born else ""
    return f"{broker_file.version}@{broker_file.modified_ms}{born}"


@dataclass(frozen=True, slots=True)
class Root:
    """A root as it was found: its description and its identity."""

    file: BrokerFile
    identity: str


def inspect_root(store: Store) -> Root | None:
    """The root as it is now; None without a description (unmounted, or never formatted). Looks up ``broker.json``,
    and reads exactly the object that was found.

    Raises: CorruptionError (see ``read_broker_file``); SourceChangedError, StorageError.
    """
    try:
        found = store.stat(paths.BROKER_FILE)
    except FileNotFoundError:
        return None
    data = read_listed(store, found, BROKER_FILE_BYTES)
    return Root(_decode_broker_file(store, data), root_identity(found))


def check_signed(found: BrokerFile, store: Store, key: ClusterKey | None) -> None:
    """Check the signature of a ``broker.json`` that is the only source of a directory id, if the cluster has a
    key. (A registered id needs no check: it is in the metadata, which is signed, and ``broker.json`` may outlive
    the secret with which the root was formatted.)

    Raises: UnsignedError.
    """
    if key is not None:
        what = f"{store.uri_of(paths.BROKER_FILE)} (if you recognize it, remove it and format the root again)"
        key.check(_KIND, paths.BROKER_FILE, _digest(found), found.tag, what)


def _encode_broker_file(file: BrokerFile, key: ClusterKey | None) -> bytes:
    tag = {} if key is None else {"tag": key.tag(_KIND, paths.BROKER_FILE, _digest(file))}
    return msgspec.json.encode(_fields(file) | tag)


def _digest(file: BrokerFile) -> bytes:
    return hashlib.sha256(msgspec.json.encode(_fields(file))).digest()


def _fields(file: BrokerFile) -> dict[str, object]:
    return {name: value for name, value in msgspec.structs.asdict(file).items() if name != "tag"}


def check_broker_file(found: BrokerFile, store: Store, cluster_id: str, broker_id: int) -> None:
    """Check the owner of a root. Raises: InconsistentClusterIdError, LogDirError if it belongs to another cluster
    or broker.
    """
    if found.cluster_id != cluster_id:
        raise InconsistentClusterIdError(
            f"log dir {store.uri} of broker {broker_id} belongs to cluster {found.cluster_id!r}, "
            f"not to {cluster_id!r}: correct log_dir in the cluster file"
        )
    if found.broker_id != broker_id:
        raise LogDirError(
            f"log dir {store.uri} of broker {broker_id} belongs to broker {found.broker_id}: "
            "two brokers cannot share a log dir; correct log_dir in the cluster file"
        )


def format_root(
    store: Store, cluster_id: str, broker_id: int, new_id: NewId, key: ClusterKey | None = None
) -> BrokerFile:
    """Format the root for a broker, unless it is already formatted. With ``key`` its ``broker.json`` is signed.

    Raises: LogDirError, UnsupportedStoreError, InconsistentClusterIdError. If it raises any of these, nothing was
    changed.
    """
    found = read_broker_file(store)
    if found is None:
        store.check()
        fresh = BrokerFile(cluster_id=cluster_id, broker_id=broker_id, directory_id=new_id())
        if store.create(paths.BROKER_FILE, _encode_broker_file(fresh, key)):
            return fresh
        found = read_broker_file(store)
        if found is None:
            raise BrokerUnreachableError(
                f"{store.uri}: broker.json was deleted immediately after another driver created it; try again"
            )
    check_broker_file(found, store, cluster_id, broker_id)
    return found
