"""The arguments of a Kafka cluster's tier that ``mirror``, ``compare`` and the command ``kafka_tier`` share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.partitions.errors import InvalidCallError
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
    keys: Mapping[str, str] | None = None
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
        from stratalog.bridges.kafka_tier.by_hand import epochs_by_hand, log_starts_by_hand
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
            epochs=epochs_by_hand(self.epochs or {}),
            log_starts=log_starts_by_hand(self.log_starts or {}),
            storage=self.storage,
        )
