"""One walk through the folder of a topic on each broker, instead of a listing of each replica.

A walk is cheap: on a bucket it takes one request per thousand names, and one check of the root. But a walk is not
a snapshot, and brokers are walked in no particular order, so the result is only a hint. A walk is for checks that
usually find nothing; if a check finds something, listings must confirm it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.replica import Replica
from stratalog.partitions.runner import Done
from stratalog.partitions.store import StoredObject

Walked = Mapping[TopicIdPartition, Mapping[int, Sequence[StoredObject]]]
"""The objects in the folders of replicas, by partition and broker."""
NOT_WALKED: Walked = {}

_FEW = 16
"""A walk reads the names of all partitions of a topic, so a topic is walked only if at least one in this many
partitions is requested.
"""


def walk_topics(storage: Storage, image: ClusterImage, partitions: Iterable[PartitionReplicas]) -> Walked:
    """Walk the folders of the replicas of these partitions of ``image``. A topic is included only if at least one
    in ``_FEW`` of its partitions is requested. A broker that does not answer, or whose root is not the registered
    one, is left out.
    """
    works: dict[tuple[str, int], list[tuple[TopicIdPartition, Replica]]] = {}
    for topic_id, group in groupby(sorted(partitions, key=_place), key=lambda of: of.view.topic_id):
        chosen = list(group)
        for of in chosen if len(chosen) * _FEW >= len(image.topics[topic_id].partitions) else ():
            for broker in of.view.replicas:
                if not of.view.brokers[broker].fenced and broker in of.stores:
                    works.setdefault((topic_id, broker), []).append((of.view.key, of.replica(broker)))
    walked: dict[TopicIdPartition, dict[int, Sequence[StoredObject]]] = {}
    for outcome in storage.threads.run(_walk, list(works.values())):
        if isinstance(outcome, Done):
            for key, replica in outcome.item:
                objects = outcome.value.get(replica.folder, [])
                if all(
                    stored.name != replica.folder for stored in objects
                ):  # otherwise the folder is a link, and a listing refuses links
                    walked.setdefault(key, {})[replica.broker_id] = objects
    return walked


def _place(of: PartitionReplicas) -> TopicIdPartition:
    return of.view.key


def _walk(replicas: Sequence[tuple[TopicIdPartition, Replica]]) -> dict[str, list[StoredObject]]:
    """The objects of one topic on one broker, grouped by the folder of each of these replicas.

    Raises: errors from listing the broker; see ``Replica.check_root``.
    """
    _, first = replicas[0]
    found: dict[str, list[StoredObject]] = {}
    for stored in first.store.walk(_above(first.folder)):
        found.setdefault("/".join(stored.name.split("/", 3)[:3]), []).append(stored)
    first.check_root()
    return found


def _above(folder: str) -> str:
    return folder.rpartition("/")[0]
