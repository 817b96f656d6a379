"""The folders of a cluster and some of its topics. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stratalog.engine.config.cluster_file import ClusterFile
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS, check_not_internal
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.store.protocol import StoreOptions


@dataclass(frozen=True, slots=True)
class StorageRoot:
    """A root of the cluster."""

    address: str
    options: StoreOptions
    incarnation: str = ""
    """The folder of the current incarnation; empty for the remote tier."""
    voter: str = ""
    """The directory id of a metadata voter; empty for other roots."""


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """The roots of a cluster, and the topics of a policy."""

    cluster_id: str
    brokers: tuple[StorageRoot, ...]
    remote: StorageRoot | None
    topics: Mapping[str, str] | None
    """Topic ids by name; None: all topics, including future ones."""
    internal: Mapping[str, str]
    """Topic ids of existing internal topics, by name."""


def layout_of(file: ClusterFile, image: ClusterImage, topics: Sequence[str] | None) -> ClusterLayout:
    """The layout of the cluster now, with these topics (None: all).

    Raises: UnknownTopicOrPartitionError, InvalidTopicError; InvalidCallError for a broker that is not registered.
    """
    for name in topics or ():
        check_not_internal(name, "give rights to")
    voters = {voter.broker_id: voter.directory_id for voter in image.voters}
    brokers = []
    for entry in file.brokers:
        registered = image.brokers.get(entry.broker_id)
        if registered is None:
            raise InvalidCallError(
                f"broker {entry.broker_id} of the cluster file is not registered, so its folder is unknown: "
                "format or bootstrap it first, or remove it from the file"
            )
        brokers.append(
            StorageRoot(
                entry.log_dir,
                entry.storage,
                registered.incarnation_folder,
                voters.get(entry.broker_id, ""),
            )
        )
    return ClusterLayout(
        file.cluster_id,
        tuple(brokers),
        None if file.remote is None else StorageRoot(file.remote, file.remote_storage),
        None if topics is None else {name: image.topic(name).topic_id for name in dict.fromkeys(topics)},
        {name: image.topic_ids[name] for name in sorted(INTERNAL_TOPICS) if name in image.topic_ids},
    )
