"""Offsets of consumer groups: OffsetFetch, OffsetCommit and DeleteGroups, by ``cluster.groups``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from stratalog.bridges.serve.codes import ErrorCode, error_code
from stratalog.bridges.serve.metadata import ServedMetadata, has_partition
from stratalog.bridges.serve.protocol import Fields, partitions_of, topics_of
from stratalog.engine.metadata.chosen import cluster_config_of
from stratalog.engine.records.groups import commit, committed
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.identity import TopicPartition

_NOTHING = OffsetAndMetadata(-1)
"""The answer for a partition without a commit."""
_NO_EPOCH = -1


class ServedGroups:
    def __init__(self, metadata: ServedMetadata, delete_group: Callable[[str], object]) -> None:
        """``delete_group`` deletes a group, and writes an event. Raises: see ``cluster.groups.delete``."""
        self._metadata = metadata
        self._delete_group = delete_group

    def offsets(self, body: Fields) -> Fields:
        """OffsetFetch: the offsets of these partitions, or all offsets of the group."""
        error: int = ErrorCode.NONE
        found: Mapping[TopicPartition, OffsetAndMetadata] = {}
        try:
            found = committed(*self._metadata.for_records, body["consumer_group"] or "")
        except StratalogError as failed:
            error = error_code(failed, of_group=True)
        asked = sorted(found)
        if body["topics"] is not None:
            asked = [(topic["topic"], one) for topic in body["topics"] for one in topic["partitions"] or ()]
        answers = {key: _committed(found.get(key, _NOTHING), error) for key in asked}
        return {"throttle_time_ms": 0, "topics": topics_of(answers), "error_code": error}

    def commit(self, body: Fields, error: int) -> Fields:
        """OffsetCommit: commits the offsets of all partitions that are not refused individually, or commits
        nothing. With an ``error``, it commits nothing. As in Kafka, offsets beyond the log end are committed. An
        offset below 0 is ignored: Kafka stores it, but clients treat it as no commit.
        """
        asked = partitions_of(body)
        refused: dict[TopicPartition, int] = {}
        if not error:
            try:
                image = self._metadata.image(max_age_s=0)
                most_bytes = cluster_config_of(image).offset_metadata_max_bytes
                for key, one in asked.items():
                    if not has_partition(image, *key):
                        refused[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    elif len((one["metadata"] or "").encode()) > most_bytes:
                        refused[key] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                taken = asked.keys() - refused.keys()
                wanted = {key: _wanted(asked[key]) for key in taken if asked[key]["offset"] >= 0}
                commit(
                    *self._metadata.all,
                    body["consumer_group"] or "",
                    wanted,
                    forget=taken - wanted.keys(),
                    beyond_end=True,
                )
            except StratalogError as failed:
                error = error_code(failed, of_group=True)
        answers = {key: {"error_code": error or refused.get(key, ErrorCode.NONE)} for key in asked}
        return {"throttle_time_ms": 0, "topics": topics_of(answers)}

    def delete(self, body: Fields, with_members: Collection[str]) -> Fields:
        """DeleteGroups: deletes the groups' offsets, except for groups with members. All groups are read first, so
        unknown names cost no further listings.
        """
        asked = dict.fromkeys(name or "" for name in body["groups_names"] or ())
        try:
            known, failures = self._metadata.groups()
        except StratalogError as failed:
            errors = dict.fromkeys(asked, error_code(failed, of_group=True))
        else:
            unknown = ErrorCode.COORDINATOR_NOT_AVAILABLE if failures else ErrorCode.GROUP_ID_NOT_FOUND
            errors = {
                name: ErrorCode.NON_EMPTY_GROUP
                if name in with_members
                else self._delete(name)
                if name in known
                else unknown
                for name in asked
            }
        results = [{"group_id": name, "error_code": error} for name, error in errors.items()]
        return {"throttle_time_ms": 0, "results": results}

    def _delete(self, name: str) -> int:
        try:
            self._delete_group(name)
        except StratalogError as failed:
            return error_code(failed, of_group=True)
        return ErrorCode.NONE


def _wanted(one: Fields) -> OffsetAndMetadata:
    epoch = one.get("leader_epoch", _NO_EPOCH)
    return OffsetAndMetadata(one["offset"], None if epoch < 0 else epoch, one["metadata"] or "")


def _committed(one: OffsetAndMetadata, error: int) -> Fields:
    epoch = _NO_EPOCH if one.leader_epoch is None else one.leader_epoch
    return {"offset": one.offset, "leader_epoch": epoch, "metadata": one.metadata, "error_code": error}
