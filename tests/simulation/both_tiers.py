"""C1 to C5 of a compacted topic in both tiers (``stratalog.tiering.removal``), after every step, for readers; E3
where records are erased (``stratalog.tiering.erasure``)."""

from __future__ import annotations

from collections.abc import Mapping

from stratalog.partitions import paths
from stratalog.tiering.remote_log import RemoteLog
from tests.simulation.content import content_of
from tests.simulation.invariants import Invariants
from tests.simulation.oracle import History, Key, Token, is_tombstone, key_of
from tests.simulation.remote import Table
from tests.simulation.roots import Root
from tests.simulation.scheduler import Violation


class BothTiers:
    """Compares the remote tables with the replicas and the oracle."""

    def __init__(
        self, invariants: Invariants, tables: Mapping[str, Table], remote: Root, *, tiered_later: bool
    ) -> None:
        """``tiered_later``: the topic becomes tiered in the middle, so a rule may be from before."""
        self._invariants, self._tables, self._remote = invariants, tables, remote
        self._tiered_later = tiered_later
        self._seen: dict[Key, tuple[object, ...]] = {}
        self._erased: dict[Key, tuple[object, ...]] = {}

    def check(self) -> None:
        """Check after a step. Raises: Violation."""
        for key, history in self._invariants.oracle.histories.items():
            self._check_erased(key, history)
            if history.rule is None or history.unclean or history.behind or key[0] not in self._tables:
                continue
            partition, table = self._invariants.partition(key), self._tables[key[0]]
            if partition is None or table.version < 0:
                continue
            folders = [
                (broker, self._invariants.folder(broker, key))
                for broker in partition.replicas
                if self._invariants.sound(broker)
            ]
            states = [(broker, self._invariants.state(broker, folder)) for broker, folder in folders]
            seen = (table.version, *(id(state) for _, state in states))
            if self._seen.get(key) == seen:
                continue
            self._seen[key] = seen
            log = RemoteLog.of("the table", 0, [u.segment for u in table.live.values()], rules=table.rules)
            erased = table.erased.get(key[1], 0)
            follows = self._check_table(key, history, log)
            beyond = history.rule.bound > max(log.end(key[1]) or 0, partition.log_start_offset)
            if beyond and not self._tiered_later:
                raise Violation(
                    f"C1: {history.rule} of {self._invariants.name(key)} exceeds the remote log, which alone "
                    "must have the last record of each key below it"
                )
            for broker, state in states:
                for link in state.log.chain:
                    for offset in range(link.start, link.end) if link.name.generation else ():
                        if max(follows.get(offset, link.name.generation), erased) < link.name.generation:
                            raise Violation(
                                f"C4: {link.name} on broker {broker} follows a later rule than the remote log at "
                                f"{offset} of {self._invariants.name(key)}"
                            )

    def _check_erased(self, key: Key, history: History) -> None:
        """E3: no listed segment has a record of an erasure that the table records. Raises: Violation."""
        table = self._tables.get(key[0])
        if not history.erased or history.unclean or table is None or table.version < 0:
            return
        recorded = table.erased.get(key[1], 0)
        seen = table.version, recorded, len(history.erased)
        if self._erased.get(key) == seen:
            return
        self._erased[key] = seen
        topic = self._invariants.oracle.image.topics.get(key[0])
        for upload in table.live.values() if topic is not None else ():
            segment = upload.segment
            if topic is None or segment.partition != key[1]:
                continue
            name = paths.join(paths.topic_folder(topic.name, topic.topic_id), segment.path)
            entry = self._remote.folders.get(paths.folder_of(name), {}).get(name)
            if entry is None:
                continue
            follows = max(recorded, segment.generation)
            tokens = content_of(self._invariants.intended(entry[1])).tokens
            for offset, token in enumerate(tokens, segment.base_offset):
                named = history.erased.get(offset, follows + 1) <= follows
                if named and token == history.committed.get(offset) != b"%d:" % offset:
                    raise Violation(
                        f"E3: {token!r} at {offset} is in {segment.path} of {self._invariants.name(key)}, and the "
                        f"table follows erasure {follows}"
                    )

    def _check_table(self, key: Key, history: History, log: RemoteLog) -> dict[int, int]:
        """The generation at each offset of the remote log. Raises: Violation."""
        follows: dict[int, int] = {}
        topic = self._invariants.oracle.image.topics[key[0]]
        folder = paths.topic_folder(topic.name, topic.topic_id)
        for segment in log.of_partition(key[1]):
            name, who = paths.join(folder, segment.path), f"in {segment.path}"
            entry = self._remote.folders.get(paths.folder_of(name), {}).get(name)
            if entry is None:
                raise Violation(f"C5: the table lists {segment.path}, which is gone")
            generation = log.generation_at(segment)
            content = content_of(self._invariants.intended(entry[1]))
            for offset, token in enumerate(content.tokens, segment.base_offset):
                follows[offset] = generation
                history.commit(offset, token, who)
                removed = token == b"%d:" % offset
                if generation:
                    self._invariants.check_same(key, generation, offset, removed, who)
                rule = history.rule
                done = rule is not None and log.generation(key[1]) == rule.generation
                if done and rule is not None and not removed and history.is_superseded(offset, rule):
                    raise Violation(f"C2: {offset} is {who}, and {rule}, which the table has, removes it")
        return follows


def check_latest(history: History, seen: Mapping[int, Token], start: int, end: int, who: str) -> None:
    """Check that a reader of ``[start, end)`` of both tiers finds the last record of each key, and no earlier one
    that was removed. A compaction may have removed the last unerased record, since an erased one followed it.
    Raises: Violation (C4)."""
    if history.unclean or any(offset not in history.committed for offset in range(start, end)):
        return
    last = {key_of(history.committed[offset]): offset for offset in range(start, end)}
    there = {key_of(token): token for offset, token in sorted(seen.items()) if token != b"%d:" % offset}
    for key, offset in last.items():
        if offset in history.erased:
            continue  # it may still be there; the earlier ones are erased too, or have left by a rule before
        got, token = there.get(key), history.committed[offset]
        if got != token and not (got is None and is_tombstone(token)):
            raise Violation(f"C4: the last record of {key!r} is {token!r}, but {who} gets {got!r}")
