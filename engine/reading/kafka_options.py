"""Options of Spark's Kafka source and sink that this format lacks, and their substitutes. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_PREFIX = "kafka."

_INSTEAD: Mapping[str, str] = {
    "kafka.bootstrap.servers": "the option cluster is the path of the cluster's file, which names the brokers",
    "kafka.group.id": "the option group names the consumer group to which a stream commits its progress",
    "groupidprefix": "the option group names the consumer group to which a stream commits its progress",
    "kafka.client.rack": "the option is client.rack",
    "kafka.isolation.level": "the option is isolation",
    "kafka.acks": "a sink waits for all in-sync replicas (acks=all)",
    "kafka.enable.idempotence": "a sink appends each batch once; the option producer names it",
    "kafka.transactional.id": "a sink appends each batch once; the option producer names it",
    "kafka.partitioner.class": "the topic's config partitioner says to which partition a key goes",
    "kafka.compression.type": "the segments of a topic are Parquet files, which are compressed",
    "minoffsetspertrigger": "a batch does not wait for a number of records: use a longer trigger interval",
    "maxtriggerdelay": "a batch does not wait for a number of records: use a longer trigger interval",
    "maxrecordsperpartition": "minPartitions splits a batch into smaller tasks",
    "includetimestamp": "the column timestamp is always present",
}
_OF_SECURITY = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")


def instead_of(option: str) -> str | None:
    """The substitute for an option of Spark's Kafka source or sink; None for another option."""
    name = option.lower()
    if name in _INSTEAD:
        return _INSTEAD[name]
    if name.startswith(_OF_SECURITY):
        return "credentials come from the environment, or from the provider that the option credentials names"
    if name.startswith((_PREFIX, "kafkaconsumer.", "fetchoffset.")):
        return "no Kafka client runs here, so leave it out"
    return None
