"""The arguments of a Kafka cluster's tier that ``mirror``, ``compare`` and the command ``kafka_tier`` share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.store import StoreOptions

if TYPE_CHECKING:
    from stratalog.bridges.kafka_tier.tier import KafkaTier


@dataclass(frozen=True, slots=True)
class KafkaTierOptions:
    """The tiered storage (KIP-405) of a Kafka cluster, for ``cluster.mirror`` and ``cluster.compare``.

        tier = KafkaTierOptions("s3://kafka-tier", layout="aiven", metadata="s3://backup/kafka-logs")
        cluster.mirror("trips", tier=tier)

    Args:
        address: the bucket or folder of the tier
        layout: the plugin that writes the tier: aiven, local, or one of an installed package
        prefix: the prefix that the plugin puts before object names
        keys: a private key of the plugin, by key id
        endpoint_url: the endpoint of the tier's object storage server
        region: the S3 region of the tier
        metadata: without brokers: the bucket or folder with the log of __remote_log_metadata, such as a copy of a
            broker's log folder
        epochs: without brokers: a copy of a broker's leader-epoch-checkpoint, by partition (trips-0)
        log_starts: without brokers: the log start of a partition (trips-0)
    """

    address: str
    layout: str
    prefix: str = ""
    keys: Mapping[str, str] | None = field(default=None, repr=False)
    endpoint_url: str | None = None
    region: str | None = None
    metadata: str | None = None
    epochs: Mapping[str, str] | None = None
    log_starts: Mapping[str, str] | None = None

    @property
    def storage(self) -> StoreOptions:
        """The server of the tier and of the metadata."""
        return StoreOptions(self.endpoint_url, self.region)

    def open(self, bootstrap: str | None, configs: Mapping[str, str] | None) -> KafkaTier:
        """The tier, with metadata of the brokers at ``bootstrap``, or without brokers.

        Raises: InvalidCallError for wrong epochs or log starts, or if they are given together with brokers; see
        ``KafkaTier.open``.
        """
        from stratalog.bridges.kafka_tier.tier import KafkaTier

        if bootstrap is not None and (self.epochs or self.log_starts):
            raise InvalidCallError(
                "the brokers report leader epochs and log starts: give these only if the tier has no brokers"
            )
        return KafkaTier.open(
            self.address,
            layout=self.layout,
            metadata=self.metadata,
            bootstrap=bootstrap,
            configs=configs,
            prefix=self.prefix,
            keys=self.keys,
            epochs=_epochs(self.epochs or {}),
            log_starts=_log_starts(self.log_starts or {}),
            storage=self.storage,
        )


def _epochs(given: Mapping[str, str]) -> dict[TopicPartition, tuple[tuple[int, int], ...]]:
    """The leader epochs of partitions (``trips-0``), each from a broker's file ``leader-epoch-checkpoint``.

    Raises: InvalidCallError for a name that is not a partition, or a file that cannot be read or has a newer
    version; CorruptionError for a damaged file.
    """
    from stratalog.bridges.kafka_tier.indexes import parse_checkpoint

    found = {}
    for name, path in given.items():
        key, what = _partition(name, "epochs"), f"the leader epochs of {name} in {path}"
        try:
            found[key] = parse_checkpoint(Path(path).read_bytes(), what)
        except OSError as error:
            raise InvalidCallError(f"{what} cannot be read: {error.strerror}") from error
    return found


def _log_starts(given: Mapping[str, str | int]) -> dict[TopicPartition, int]:
    """The log starts of partitions (``trips-0``). Raises: InvalidCallError for a name that is not a partition, or
    a value that is not an offset.
    """
    found = {}
    for name, offset in given.items():
        if not str(offset).isdecimal():
            raise InvalidCallError(f"log_starts: {offset!r} of {name} is not an offset")
        found[_partition(name, "log_starts")] = int(offset)
    return found


def _partition(name: str, option: str) -> TopicPartition:
    topic, _, partition = name.rpartition("-")
    if not topic or not partition.isdecimal():
        raise InvalidCallError(f"{option}: {name!r} is not a partition: write TOPIC-PARTITION, such as trips-0")
    return topic, int(partition)
