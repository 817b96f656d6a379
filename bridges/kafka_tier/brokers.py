"""Reads the metadata topic, the log starts and the current history from the brokers of a running cluster.

This takes a few kilobytes, and no tiered records. For each partition, a reader checks that the brokers have the
history of the tier. The check begins after the last tiered offset, with that offset's leader epoch
(OffsetsForLeaderEpoch, KIP-320).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from stratalog.bridges.kafka_tier.metadata_log import TOPIC
from stratalog.bridges.kafka_tier.plan import TierPartition, Unclear
from stratalog.bridges.kafka_tier.segment_states import Message, parsed
from stratalog.bridges.mirror.source import MirrorSource, SourceRange
from stratalog.partitions.errors import OffsetOutOfRangeError, RetriableError
from stratalog.partitions.identity import TopicPartition


class SourceBrokers:
    """The brokers of a cluster, through the source of a mirror."""

    def __init__(self, source: MirrorSource) -> None:
        self._source = source
        self._ids: dict[str, str] = {}
        self._refused: dict[TopicPartition, str | None] = {}

    def messages(self, notes: list[str]) -> Iterator[Message]:
        """All current messages of the metadata topic. Gaps are added to ``notes``. Raises:
        UnknownTopicOrPartitionError if the cluster has no such topic; RetriableError if a partition does not
        answer; see ``parse_message``.
        """
        count = self._source.topics([TOPIC])[TOPIC].partitions
        keys = [(TOPIC, number) for number in range(count)]
        bounds = self._source.bounds(keys)
        if missing := [number for _, number in keys if (TOPIC, number) not in bounds]:
            raise RetriableError(f"partitions {missing} of {TOPIC} have no leader, or do not answer; try again")
        for (_, number), one in bounds.items():
            if one.log_start > 0:
                notes.append(
                    f"{TOPIC}-{number} begins at offset {one.log_start}: segments that only earlier records "
                    "describe are unknown"
                )
        left = {
            key: SourceRange(one.log_start, one.stable_end)
            for key, one in bounds.items()
            if one.log_start < one.stable_end
        }
        if not left:
            return
        with closing(self._source.read(dict(left))) as reads:
            for read in reads:
                if read.error is not None:
                    raise read.error
                columns = [read.records.column(name).to_pylist() for name in ("offset", "value")]
                yield from parsed(list(zip(*columns, strict=True)), f"{read.key[0]}-{read.key[1]}")
                if read.key in left and read.position >= left[read.key].end:
                    del left[read.key]
                if not left:
                    return
        raise RetriableError(
            f"{TOPIC} was not read to its end: records of partitions "
            f"{sorted(partition for _, partition in left)} are missing; try again"
        )

    def topic_id(self, topic: str) -> str:
        """The current id of the topic. Raises: UnknownTopicOrPartitionError."""
        if topic not in self._ids:
            self._ids[topic] = self._source.topics([topic])[topic].source.rpartition("/")[2]
        return self._ids[topic]

    def log_start(self, key: TopicPartition) -> int:
        """The current log start. Raises: RetriableError if the partition does not answer."""
        bounds = self._source.bounds([key])
        if key not in bounds:
            raise RetriableError(f"{key[0]}-{key[1]} has no leader, or the leader does not answer; try again")
        return bounds[key].log_start

    def confirmed(self, plan: TierPartition) -> TierPartition:
        """The plan, if the brokers have the history of the plan's end. If they do not, all offsets of the returned
        plan are unclear.

        Raises: RetriableError kinds.
        """
        key = (plan.topic, plan.partition)
        if not plan.pieces:
            return plan
        if key not in self._refused:
            self._refused[key] = self._refusal(key, plan)
        why = self._refused[key]
        if why is None:
            return plan
        unclear = (Unclear(plan.topic, plan.partition, plan.start, plan.end, why),)
        return TierPartition(
            plan.topic, plan.partition, plan.epochs, plan.start, plan.end, (), unclear, plan.left_out
        )

    def _refusal(self, key: TopicPartition, plan: TierPartition) -> str | None:
        end = plan.pieces[-1].end
        epoch = plan.epochs.epoch_at(end - 1)
        with closing(self._source.read({key: SourceRange(end, end + 1, epoch)})) as reads:
            for read in reads:
                if isinstance(read.error, OffsetOutOfRangeError):
                    return (
                        f"the brokers' history differs from the tier's history, which ends at {end} in epoch "
                        f"{epoch}"
                    )
                if read.error is not None:
                    raise read.error
                return None
        raise RetriableError(f"{key[0]}-{key[1]} got no answer; try again")
