"""The naive twin: per partition one list of committed records; and the committed metadata.

The twin learns of records from acknowledgements and from replicas: records below a high watermark are committed
forever. It learns of metadata from any driver that considers a state committed; every operation rests on such a
state, so none is seen too late.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from stratalog.engine.metadata.fold import apply
from stratalog.engine.metadata.image import ClusterImage, PartitionImage
from stratalog.engine.quorum.log import MetadataLog
from stratalog.engine.quorum.state import CommittedLog, LogState
from stratalog.engine.quorum.voter import VoterLook
from stratalog.partitions.paths import DataName
from stratalog.partitions.removal import Rule
from tests.simulation.content import records_of_batch
from tests.simulation.scheduler import Violation

Key = tuple[str, int]
"""Topic id and partition."""

Token = bytes
"""A record's value; no two appends write the same."""


def key_of(token: Token) -> bytes:
    """The key of the record with this value, in a compacted topic."""
    return b"k%d" % (zlib.crc32(token) % 3)


def is_tombstone(token: Token) -> bool:
    """Whether the record of this token has no value, in a compacted topic."""
    return zlib.crc32(token) % 4 == 3


@dataclass(slots=True)
class History:
    """The expected state of one partition."""

    begin: int = 0
    """The start of the log at the partition's creation. Nothing is below, so every replica has it."""
    committed: dict[int, Token] = field(default_factory=dict)
    offsets: dict[Token, int] = field(default_factory=dict)
    """The committed offset of each token."""
    acknowledged: int = 0
    """All offsets below are on every member of the ISR."""
    high: int = 0
    """The greatest high watermark of any replica."""
    proven: int = 0
    """All offsets below were once on every member of an ISR with ``min.insync.replicas`` members."""
    unclean: bool = False
    """It had an unclean election: committed records may be lost."""
    read: dict[str, int] = field(default_factory=dict)
    """The greatest high watermark of a reader, by replica folder."""
    behind: bool = False
    """All replicas were restored, and end before the remote log: until the leader continues from the end of
    that."""
    was_put_back: bool = False
    begins_again: int | None = None
    """All replicas lost all records, and up to here the metadata know of them: until an operator lets the log
    begin again."""

    rule: Rule | None = None
    """The rule by which records have left."""
    generation: int = 0
    """The generation of the last rule or erasure."""
    erased: dict[int, int] = field(default_factory=dict)
    """Erased offsets, each with the generation of the first erasure."""
    reported: set[int] = field(default_factory=set)
    """Offsets that a run has reported as erased."""
    whole: set[int] = field(default_factory=set)
    """Offsets that a run has reported as wholly erased."""
    keys_gone: dict[bytes, int] = field(default_factory=dict)
    """Keys that a run has reported as erased from snapshots, with the offset up to which."""
    keys_whole: dict[bytes, int] = field(default_factory=dict)
    """The same of keys that a run has reported as wholly erased."""
    snapshot_end: int = 0
    """The offset at which each member of the ISR has a current snapshot, or later, because keys were erased."""

    def is_superseded(self, offset: int, rule: Rule) -> bool:
        """Whether the rule removes the committed record at an offset."""
        token = self.committed.get(offset)
        if token is None or offset >= rule.bound:
            return False
        key = key_of(token)
        later = (self.committed.get(at) for at in range(offset + 1, rule.bound))
        return any(other is not None and key_of(other) == key for other in later) or (
            is_tombstone(token) and offset < rule.tombstones_before
        )

    def commit(self, offset: int, token: Token, who: str) -> None:
        """``token`` is committed at ``offset``, unless a rule has removed the committed one. Raises: Violation
        (C1) if another one is committed, or it is committed elsewhere."""
        if token == b"%d:" % offset and (offset in self.erased or self.rule is not None):
            known = self.committed.setdefault(offset, token)  # a mirror has the gaps of its source
            removed = offset in self.erased or known == token or self.rule is None
            if not removed and self.rule is not None and not self.is_superseded(offset, self.rule):
                raise Violation(f"C1: {known!r} at {offset} is gone {who}, kept by {self.rule}")
            return
        known = self.committed.setdefault(offset, token)
        if known != token:
            raise Violation(f"I2: offset {offset} holds {token!r} {who}, {known!r} was committed there")
        if self.offsets.setdefault(token, offset) != offset:
            raise Violation(f"I3: {token!r} is at {offset} {who}, and committed at {self.offsets[token]}")

    def put_back(self, end: int) -> set[Token]:
        """All replicas were restored from an older copy, and the remote log ends at ``end``: records below stay
        committed (I14: no offset is acknowledged with other records while the remote log holds the first). Returns
        the lost records.
        """
        lost = {token for offset, token in self.committed.items() if offset >= end}
        self.committed = {offset: token for offset, token in self.committed.items() if offset < end}
        self.offsets = {token: offset for offset, token in self.committed.items()}
        self.acknowledged, self.high = min(self.acknowledged, end), min(self.high, end)
        self.proven = max(self.proven, end)
        self.read.clear()
        self.behind = self.was_put_back = True
        return lost

    def lose_all(self, known: int) -> set[Token]:
        """No replica has a record any more, nor a remote log, and the metadata know that there were some up to
        ``known``: these offsets stay committed (I15: none of them is acknowledged with other records). Returns the
        lost records.
        """
        lost = set(self.offsets)
        self.committed = {offset: token for offset, token in self.committed.items() if offset < known}
        self.offsets.clear()
        self.acknowledged = self.high = 0
        self.read.clear()
        self.begins_again, self.behind, self.was_put_back = known, True, True
        return lost

    def copy(self) -> History:
        """A copy without readers."""
        return replace(self, committed=dict(self.committed), offsets=dict(self.offsets), read={})

    def forget(self) -> None:
        """After an unclean election, start again from the content of storage."""
        self.unclean = True
        self.committed.clear()
        self.offsets.clear()
        self.acknowledged = self.high = 0
        self.read.clear()


class Oracle:
    """The invariants of partitions and metadata."""

    def __init__(self, bytes_of: Callable[[DataName], bytes]) -> None:
        self.image = ClusterImage()
        self.files: dict[int, DataName] = {}
        """The committed batches by their first offset."""
        self.images: dict[int, ClusterImage] = {}
        """The image after each of them."""
        self.histories: dict[Key, History] = {}
        self.changed: dict[Key, None] = {}
        """Partitions whose metadata changed since the last look."""
        self.keys_wanted: set[bytes] = set()
        """Keys that a run was to erase."""
        self.counts: dict[str, int] = dict.fromkeys(
            (
                "elections",
                "unclean",
                "expansions",
                "shrinks",
                "commits",
                "deleted topics",
                "moves",
                "rules",
                "erasures",
            ),
            0,
        )
        self.bytes_of = bytes_of

    def copy(self, bytes_of: Callable[[DataName], bytes]) -> Oracle:
        """A copy with the same metadata, and no records."""
        twin = Oracle(bytes_of)
        twin.image, twin.files, twin.images = self.image, dict(self.files), dict(self.images)
        return twin

    def go_back(self, earlier: Oracle) -> None:
        """Return the metadata to the state when ``earlier`` was copied."""
        self.image, self.files, self.images = earlier.image, dict(earlier.files), dict(earlier.images)

    def history(self, key: Key) -> History:
        return self.histories.setdefault(key, History())

    # ------------------------------------------------------------------------------- metadata

    def committed(self, state: LogState) -> None:
        """A driver considers a state of the metadata log committed. Raises: Violation (I6)."""
        if state.image.next_offset > self.image.next_offset:
            for name in sorted(state.files - set(self.files.values())):
                if name.base_offset != self.image.next_offset:
                    raise Violation(f"I6: {name} was committed where {self._at(name.base_offset)} is")
                self.files[name.base_offset] = name
                for record in records_of_batch(self.bytes_of(name)):
                    before = self.image
                    self.image = apply(before, before.next_offset, [record])
                    self._compare(before, self.image)
                self.images[self.image.next_offset] = self.image
                self.counts["commits"] += 1
        for name in state.files:
            if self.files.get(name.base_offset) != name:
                raise Violation(f"I6: {name} was taken for committed where {self._at(name.base_offset)} is")
        if state.start > 0 and self.images.get(state.end) != state.image:
            raise Violation(f"I6: the image at offset {state.end}, of a snapshot, is not what was committed")

    def _at(self, offset: int) -> str:
        return str(self.files.get(offset, "nothing"))

    @staticmethod
    def _snapshots(image: ClusterImage, topic_id: str) -> bool:
        return image.topics[topic_id].configs.get("cleanup.policy") == "snapshot"

    def _compare(self, before: ClusterImage, after: ClusterImage) -> None:
        if after.brokers != before.brokers:
            self.changed.update(dict.fromkeys(self.histories))
        if after.erasures is not before.erasures:
            for topic_id, erased in after.erasures.items():
                for partition, erasures in erased.items():
                    history = self.history((topic_id, partition))
                    history.generation = max(history.generation, erasures[-1].generation)
                    for one in erasures:
                        if self._snapshots(after, topic_id):
                            history.snapshot_end = max([history.snapshot_end, *(end for _, end in one.offsets)])
                        for offset in (at for start, end in one.offsets for at in range(start, end)):
                            history.erased.setdefault(offset, one.generation)
            self.counts["erasures"] += 1
        if after.rules is not before.rules:
            for topic_id, of in after.rules.items():
                for partition, rules in of.items():
                    history = self.history((topic_id, partition))
                    history.rule = rules[-1].rule
                    history.generation = max(history.generation, history.rule.generation)
            self.counts["rules"] += 1
        self.counts["deleted topics"] += len(before.topics.keys() - after.topics.keys())
        for topic_id, topic in after.topics.items():
            earlier = before.topics.get(topic_id)
            if earlier is topic:
                continue
            for partition in topic.partitions:
                key = topic_id, partition.partition
                known = () if earlier is None else earlier.partitions
                was = known[partition.partition] if partition.partition < len(known) else None
                if was is not partition:
                    self.changed[key] = None
                    if was is not None:
                        self._note(key, was, partition)
                    elif partition.log_start_offset:
                        history = self.history(key)
                        history.begin = history.proven = partition.log_start_offset

    def _note(self, key: Key, was: PartitionImage, now: PartitionImage) -> None:
        counts = self.counts
        if now.leader_epoch != was.leader_epoch and now.leader is not None:
            counts["elections"] += 1
        counts["expansions"] += bool(set(now.isr) & set(was.adding))
        counts["moves"] += bool(was.target) and not now.target and now.replicas == was.target
        counts["shrinks"] += len(now.isr) < len(was.isr)
        returned = {incarnation.broker_id for incarnation in was.lost}
        if not set(now.isr) <= {*was.isr, *was.adding, *returned}:
            counts["unclean"] += 1
            self.history(key).forget()


class WatchedLog(MetadataLog):
    """The product's metadata log, which tells the oracle the states that its driver considers committed."""

    oracle: Oracle

    def committed_log(self) -> CommittedLog:
        known = self.oracle.image.next_offset
        log = super().committed_log()
        self._check_read(log.state.image, known)
        return log

    def read(self) -> ClusterImage:
        known = self.oracle.image.next_offset
        image = super().read()
        self._check_read(image, known)
        return image

    def read_at_once(self) -> ClusterImage | None:
        known = self.oracle.image.next_offset
        image = super().read_at_once()
        if image is not None:
            self._check_read(image, known)
        return image

    def _check_read(self, image: ClusterImage, known: int) -> None:
        if image.next_offset < known:
            raise Violation(
                f"I6: a read returned offset {image.next_offset}, {known} was committed before it began"
            )

    def _mark_committed(self, state: LogState, looks: Iterable[VoterLook]) -> LogState:
        self.oracle.committed(state)
        return super()._mark_committed(state, looks)
