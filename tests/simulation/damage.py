"""Flipped bits: the damaged objects, their original content, and the good copies of a record.

A flip changes an object in place: no listing shows it, and its copies are damaged, too. So damage is identified by
its bytes, wherever they are copied. The truth of a log (``intended``) is its original content: a damaged replica
holds its records as far as names go (I1 to I7), and I8 is about the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from stratalog.partitions import paths
from stratalog.partitions.paths import DataName, EpochName, LocalStartName, base_name, parse_name
from tests.simulation.content import content_of
from tests.simulation.oracle import Key
from tests.simulation.roots import Root
from tests.simulation.scheduler import Violation

if TYPE_CHECKING:
    from tests.simulation.world import World


class Damage:
    """All flips of a run."""

    def __init__(self) -> None:
        self._written: dict[bytes, bytes] = {}
        self.partitions: dict[Key, None] = {}
        """Partitions with any damage so far."""
        self.early: dict[Key, int] = {}
        """The first offset with damage to unacknowledged records."""

    def intended(self, data: bytes) -> bytes:
        """The original content for these bytes."""
        return self._written.get(data, data) if self._written else data

    def is_bad(self, data: bytes) -> bool:
        """Whether a bit of them is flipped."""
        return data in self._written

    def flip(self, root: Root, name: str, key: Key, choose: Callable[[int], int]) -> int:
        """Flip one bit of an object; returns the position of the byte."""
        found = root.get(name)
        assert found is not None
        data = bytearray(found[1])
        at = choose(len(data))
        data[at] ^= 1 << choose(8)
        self._written[bytes(data)] = self.intended(found[1])
        root.replace(name, bytes(data))
        self.partitions[key] = None
        return at


def released_counts(of: object) -> bool:
    """Whether files that a log has released are copies. They are not if ``of`` may be lost: they go soon."""
    return of is None


class Copies:
    """The good copies of a partition's records: on replicas, and in the remote tier."""

    def __init__(self, world: World) -> None:
        self._world = world

    def lost(
        self, key: Key, *, without: int | None = None, of: tuple[int | None, str] | None = None
    ) -> int | None:
        """The first committed, unexpired offset without good bytes, or that would have none without the root of
        broker ``without``, or without the object ``of`` a root (None: the remote tier). None if there is no such
        offset. Files that a log has released count, except for the object ``of``: they are deleted without another
        look at the remote segment.
        """
        world = self._world
        partition, history = world.invariants.partition(key), world.oracle.history(key)
        if partition is None or history.unclean:
            return None
        start, end = self._start(key), max(history.acknowledged, history.high)
        for low, high in sorted(self._good(key, without, of)):
            if low > start:
                break
            start = max(start, high)
        return start if start < end else None

    def whole_members(self, key: Key, but: int) -> list[int]:
        """Sound members of the ISR except ``but``, whose folder has no damaged object."""
        world = self._world
        partition = world.invariants.partition(key)
        if partition is None:
            return []
        found = []
        for broker in partition.isr:
            if broker != but and world.invariants.sound(broker):
                entries = world.roots[broker].folders.get(world.invariants.folder(broker, key), {})
                if not any(world.damage.is_bad(data) for _, data in entries.values()):
                    found.append(broker)
        return found

    def elsewhere(self, key: Key, broker: int, name: str) -> list[bool]:
        """Whether each copy of a file on other replicas is good."""
        world = self._world
        partition = world.invariants.partition(key)
        found = []
        for other in () if partition is None else partition.replicas:
            if other != broker and world.invariants.sound(other):
                path = f"{world.invariants.folder(other, key)}/{base_name(name)}"
                found.append(world.roots[other].get(path))
        return [not world.damage.is_bad(entry[1]) for entry in found if entry is not None]

    def is_unacknowledged(self, key: Key, name: str) -> bool:
        """Whether a file holds only unacknowledged records."""
        parsed, history = parse_name(base_name(name)), self._world.oracle.history(key)
        return isinstance(parsed, DataName) and parsed.base_offset >= max(history.acknowledged, history.high)

    def damaged(self) -> Iterator[tuple[Key, int | None, str]]:
        """Damaged objects that a log, or a remote table, uses now: partition, broker (None: remote), name."""
        world = self._world
        for key in world.damage.partitions:
            partition = world.invariants.partition(key)
            if partition is None:
                continue
            for broker in partition.replicas:
                if world.invariants.sound(broker):
                    folder = world.invariants.folder(broker, key)
                    used = {link.file.object.name for link in world.invariants.state(broker, folder).log.chain}
                    for name, (_, data) in world.roots[broker].folders.get(folder, {}).items():
                        if name in used and world.damage.is_bad(data):
                            yield key, broker, name
            for name, _ in self.remote(key):
                found = world.remote.get(name)
                if found is not None and world.damage.is_bad(found[1]):
                    yield key, None, name

    def without_register(self) -> Iterator[Key]:
        """Partitions whose leader is the last of its ISR, and has a damaged lineage, or a damaged start of a log
        above 0, without a good copy on another replica: heal does not change them."""
        world = self._world
        for key in world.damage.partitions:
            partition = world.invariants.partition(key)
            if partition is None or list(partition.isr) != [partition.leader]:
                continue
            broker = partition.leader
            folder = world.invariants.folder(broker, key)
            for name, (_, data) in world.roots[broker].folders.get(folder, {}).items():
                parsed = parse_name(base_name(name))
                begins = isinstance(parsed, LocalStartName) and parsed.offset == world.oracle.history(key).begin
                if (
                    (begins or isinstance(parsed, EpochName))
                    and world.damage.is_bad(data)
                    and not any(self.elsewhere(key, broker, name))
                ):
                    yield key
                    break

    def remote(self, key: Key) -> Iterator[tuple[str, tuple[int, int]]]:
        """The listed remote objects of a partition, and their offsets."""
        topic = self._world.oracle.image.topics.get(key[0])
        if topic is None or key[0] not in self._world.tables:
            return
        folder = paths.topic_folder(topic.name, key[0])
        for path, upload in self._world.tables[key[0]].live.items():
            segment = upload.segment
            if segment.partition == key[1]:
                yield paths.join(folder, path), (segment.base_offset, segment.next_offset)

    def _start(self, key: Key) -> int:
        """The start of the log: retention deletes records below, damaged or not."""
        world = self._world
        partition = world.invariants.partition(key)
        assert partition is not None
        start = partition.log_start_offset
        if ("remote.storage.enable", "true") in world.shape.topic_configs:
            return start
        locals_ = [
            world.invariants.state(broker, world.invariants.folder(broker, key)).log.local_start
            for broker in partition.replicas
            if world.invariants.sound(broker)
        ]
        return max([start, *locals_])

    def _good(self, key: Key, without: int | None, of: tuple[int | None, str] | None) -> Iterator[tuple[int, int]]:
        world, invariants = self._world, self._world.invariants
        partition = invariants.partition(key)
        assert partition is not None
        for broker in partition.replicas:
            if broker != without and invariants.sound(broker):
                folder = invariants.folder(broker, key)
                used = {link.file.object.name for link in invariants.state(broker, folder).log.chain}
                for name, (_, data) in world.roots[broker].folders.get(folder, {}).items():
                    parsed = parse_name(base_name(name))
                    is_data = isinstance(parsed, DataName) and (
                        name in used or (released_counts(of) and self._follows(key, parsed))
                    )
                    if is_data and (broker, name) != of and not world.damage.is_bad(data):
                        yield self._agreeing(key, data)
        for name, span in self.remote(key):
            found = world.remote.get(name)
            if found is not None and (None, name) != of and not world.damage.is_bad(found[1]):
                yield span

    def _follows(self, key: Key, name: DataName) -> bool:
        """Whether a released file may replace remote segments: none follows a later rule."""
        table = self._world.tables.get(key[0])
        segments = [] if table is None else [upload.segment for upload in table.live.values()]
        return all(
            segment.generation <= name.generation
            for segment in segments
            if segment.partition == key[1] and segment.next_offset > name.base_offset
        )

    def _agreeing(self, key: Key, data: bytes) -> tuple[int, int]:
        """The offsets of a data file whose records are the committed ones; an empty range for another history."""
        content, committed = content_of(data), self._world.oracle.history(key).committed
        for offset, token in enumerate(content.tokens, content.base_offset):
            if committed.get(offset, token) != token:
                return content.base_offset, content.base_offset
        return content.base_offset, content.next_offset

    def check(self, key: Key) -> None:
        """Check I8. Raises: Violation."""
        lost = self.lost(key)
        if lost is not None and self._was_never_copied(key, lost):
            self._world.abandon(key)
        elif lost is not None:
            raise Violation(f"I8: no good copy of offset {lost} of {self._world.invariants.name(key)} is left")

    def _was_never_copied(self, key: Key, offset: int) -> bool:
        """Whether it was damaged before the only member of an ISR acknowledged it, so that no driver had to read
        it."""
        partition = self._world.invariants.partition(key)
        early = self._world.damage.early.get(key)
        return partition is not None and len(partition.isr) == 1 and early is not None and offset >= early

    def is_nobodys_loss(self, damaged: tuple[Key, int | None, str]) -> bool:
        """Whether a file holds only records that are unacknowledged and on no other replica, on the leader of an
        ISR without another intact member: no other member can lead, and heal does not change the partition.
        """
        key, broker, name = damaged
        partition = self._world.invariants.partition(key)
        if broker is None or partition is None or broker != partition.leader or self.whole_members(key, broker):
            return False
        return self.is_unacknowledged(key, name) and not self.elsewhere(key, broker, name)
