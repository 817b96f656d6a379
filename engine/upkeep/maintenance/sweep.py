"""Sweep: one listing of each broker, which shows the partitions that have changed.

A root is listed completely: on a bucket with one request per thousand names, on folders with one walk. For each
partition, a sweep computes a digest of everything that an operation depends on, except the time: the names, sizes
and versions in the folders of its replicas, the metadata of the partition and its brokers, its configs, and the
last known end of its remote log. If an operation has found nothing to do, there is nothing to do until the digest
changes (``times.Settled``).

A sweep is only a hint. It may be inconsistent, because listings are not snapshots, and it may be outdated when it
is used. An operation lists each of its partitions again, as the protocol requires. A skipped partition is listed
after the next sweep that shows a change, or after ``times.LONGEST_MS``. So safety does not depend on a sweep.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from stratalog.engine.driver.report import Report
from stratalog.engine.driver.run import OperationRun, PartitionRow
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import BrokerImage, ClusterImage, TopicImage
from stratalog.partitions import paths
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.runner import Done
from stratalog.partitions.store import StoredObject
from stratalog.tiering.schedule import Entry

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Look:
    digest: int
    """The digest, at least 1; 0 if a broker could not be listed, because changes are then unknown."""
    files: int
    """The number of data files in the leader's folder."""
    size_bytes: int
    """The total size of the data files in the leader's folder."""
    log_end: int | None
    """A lower bound of the log end, from the names in the leader's folder. (Only the footer of an appended file
    has the exact end of the file.) None if the leader's folder could not be listed, or there is no leader.
    """


@dataclass(frozen=True, slots=True)
class _Folder:
    digest: bytes
    files: int
    size_bytes: int
    log_end: int


_NO_FOLDER = _Folder(b"", 0, 0, 0)


def sweep(
    storage: Storage, image: ClusterImage, remote_ends: Mapping[TopicIdPartition, int | None]
) -> dict[TopicIdPartition, Look]:
    """The state of every partition of ``image``; ``remote_ends`` has the last known ends of remote logs. A
    partition on a root that cannot be listed has an unknown state.
    """
    folders = walk(storage, image, lambda _, objects: _folder(objects))
    seen = {broker_id: _digest(repr(broker)) for broker_id, broker in image.brokers.items()}
    configs = repr(sorted(image.configs.items()))
    looks: dict[TopicIdPartition, Look] = {}
    for topic in image.topics.values():
        of_topic = _digest(configs + repr(sorted(topic.configs.items())))
        looks |= _looks(image, topic, of_topic, seen, folders, remote_ends)
    return looks


def _looks(
    image: ClusterImage,
    topic: TopicImage,
    of_topic: bytes,
    seen: Mapping[int, bytes],
    folders: Mapping[int, Mapping[str, _Folder]],
    remote_ends: Mapping[TopicIdPartition, int | None],
) -> dict[TopicIdPartition, Look]:
    looks: dict[TopicIdPartition, Look] = {}
    for partition in topic.partitions:
        key = TopicIdPartition(topic.topic_id, partition.partition)
        parts = [of_topic, repr((partition, remote_ends.get(key))).encode()]
        leading, known, log_end = _NO_FOLDER, True, None
        for broker_id, assignment in zip(partition.replicas, partition.assignments, strict=True):
            broker = image.brokers[broker_id]
            parts.append(seen[broker_id])
            if broker.fenced:
                continue
            known = known and broker_id in folders
            path = paths.replica_path(where(broker), topic.name, topic.topic_id, partition.partition, assignment)
            found = folders.get(broker_id, {}).get(path, _NO_FOLDER)
            parts.append(found.digest)
            if broker_id == partition.leader:
                leading, log_end = found, found.log_end if broker_id in folders else None
        digest = int.from_bytes(_digest(b"\0".join(parts))) if known else 0
        looks[key] = Look(digest, leading.files, leading.size_bytes, log_end)
    return looks


class LogEndRow(PartitionRow, frozen=True, kw_only=True):
    log_end: int
    remote_end: int | None


def log_ends(
    image: ClusterImage, looks: Mapping[TopicIdPartition, Look], tiered: Mapping[TopicIdPartition, Entry]
) -> Report:
    """The ends of all logs whose leaders were listed, local and remote, according to a sweep. The history of
    operations computes lag from these ends.
    """
    run = OperationRun("sweep")
    run.add(
        LogEndRow(
            topic=image.topics[key.topic_id].name,
            partition=key.partition,
            log_end=look.log_end,
            remote_end=tiered[key].remote_end if key in tiered else None,
        )
        for key, look in looks.items()
        if look.log_end is not None
    )
    return run.report()


def walk(
    storage: Storage, image: ClusterImage, fold: Callable[[str, Iterable[StoredObject]], T]
) -> dict[int, dict[str, T]]:
    """List each unfenced broker once. Returns, by broker, the result of ``fold`` for each folder with files, by
    path. A broker that cannot be listed is left out.
    """

    def folders(broker: BrokerImage) -> dict[str, T]:
        objects = storage.stores[broker.broker_id].walk(where(broker))
        return {folder: fold(folder, inside) for folder, inside in groupby(objects, key=_replica_folder)}

    brokers = [
        broker for broker in image.brokers.values() if not broker.fenced and broker.broker_id in storage.stores
    ]
    outcomes = storage.threads.run(folders, brokers)
    return {one.item.broker_id: one.value for one in outcomes if isinstance(one, Done)}


def where(broker: BrokerImage) -> str:
    """The folder that holds a broker's replicas, below its root."""
    return broker.incarnation_folder or broker.directory_id


def _replica_folder(stored: StoredObject) -> str:
    """The path of the replica's folder that contains a file, at any depth. (The path has three levels.)"""
    return "/".join(stored.name.split("/", 3)[:3])


def _folder(objects: Iterable[StoredObject]) -> _Folder:
    found = list(objects)
    names = [
        (paths.base_name(one.name), one.version, one.size_bytes, one.modified_ms, one.special) for one in found
    ]
    log_end = max((_reaches(name) for name, *_ in names if name.endswith((".parquet", ".hw"))), default=0)
    return _Folder(_digest(repr(names)), len(found), sum(one.size_bytes for one in found), log_end)


def _reaches(name: str) -> int:
    """An offset that the log certainly reaches, from the name of a data file or of a high watermark."""
    match paths.parse_name(name):
        case paths.DataName(base_offset=base, next_offset=end):
            return base if end is None else end
        case paths.WatermarkName(offset=offset):
            return offset
    return 0


def _digest(of: str | bytes) -> bytes:
    """A digest of seven bytes, so that JSON keeps the number exactly."""
    return hashlib.blake2b(of if isinstance(of, bytes) else of.encode(), digest_size=7).digest()
