"""Offsets of consumer groups: OffsetFetch and OffsetCommit, as ``cluster.groups`` has them.

There are no members: nothing here assigns partitions to consumers. A consumer that assigns itself its partitions
commits without a generation; a commit with one has the answer UNKNOWN_MEMBER_ID.
"""

from __future__ import annotations

from collections.abc import Mapping

from stratalog.engine.driver.context import Context
from stratalog.engine.records.groups import commit, committed
from stratalog.engine.serve.codes import NONE, UNKNOWN_MEMBER_ID, UNKNOWN_TOPIC_OR_PARTITION, error_code
from stratalog.engine.serve.metadata import ServedMetadata, has_partition
from stratalog.engine.serve.protocol import Fields
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.identity import TopicPartition

_NO_OFFSET = -1


class ServedGroups:
    """The groups of the cluster."""

    def __init__(self, metadata: ServedMetadata) -> None:
        self._metadata = metadata

    @property
    def _context(self) -> Context:
        return self._metadata.context

    def offsets(self, body: Fields) -> Fields:
        """OffsetFetch: of these partitions, or of all that the group has committed for."""
        error = NONE
        found: Mapping[TopicPartition, OffsetAndMetadata] = {}
        try:
            found = committed(self._context, body["consumer_group"] or "")
        except StratalogError as failed:
            error = error_code(failed, of_group=True)
        asked: dict[str, list[int]] = {}
        if body["topics"] is None:
            for name, partition in sorted(found):
                asked.setdefault(name, []).append(partition)
        else:
            asked = {topic["topic"]: topic["partitions"] for topic in body["topics"]}
        return {
            "throttle_time_ms": 0,
            "topics": [
                {
                    "topic": topic,
                    "partitions": [_committed(found, topic, one, error) for one in partitions or ()],
                }
                for topic, partitions in asked.items()
            ],
            "error_code": error,
        }

    def commit(self, body: Fields) -> Fields:
        """OffsetCommit: all offsets of partitions that there are, or none."""
        error, wanted = NONE, {}
        if body["consumer_group_generation_id"] >= 0 or body["consumer_id"]:
            error = UNKNOWN_MEMBER_ID
        else:
            try:
                image = self._metadata.image(fresh=True)
                wanted = {
                    (topic["topic"], one["partition"]): OffsetAndMetadata(
                        one["offset"], metadata=one["metadata"] or ""
                    )
                    for topic in body["topics"]
                    for one in topic["partitions"]
                    if has_partition(image, topic["topic"], one["partition"])
                }
                commit(self._context, body["consumer_group"] or "", wanted)
            except StratalogError as failed:
                error = error_code(failed, of_group=True)
        there = wanted.keys()
        return {
            "throttle_time_ms": 0,
            "topics": [
                {
                    "topic": topic["topic"],
                    "partitions": [
                        {
                            "partition": one["partition"],
                            "error_code": error
                            if error or (topic["topic"], one["partition"]) in there
                            else UNKNOWN_TOPIC_OR_PARTITION,
                        }
                        for one in topic["partitions"]
                    ],
                }
                for topic in body["topics"]
            ],
        }


def _committed(
    found: Mapping[TopicPartition, OffsetAndMetadata], topic: str, partition: int, error: int
) -> Fields:
    one = found.get((topic, partition), OffsetAndMetadata(_NO_OFFSET))
    return {"partition": partition, "offset": one.offset, "metadata": one.metadata, "error_code": error}
