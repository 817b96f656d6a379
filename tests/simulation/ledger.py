"""The appends and their answers: every record is accounted for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from stratalog.engine.driver.report import Report
from tests.simulation.damage import Damage
from tests.simulation.oracle import Key, Oracle, Token
from tests.simulation.scheduler import Violation


class Ledger:
    """Attempts and acknowledgements, by partition and producer."""

    def __init__(self, oracle: Oracle, topic_id: str, damage: Damage) -> None:
        self._oracle = oracle
        self._damage = damage
        self._topic_id = topic_id
        self.appends: dict[tuple[Key, str], dict[int, bool]] = {}
        """Begun sequences, in order, and whether they are acknowledged."""
        self.sizes: dict[tuple[Key, str, int], int] = {}
        self.never: defaultdict[Key, set[Token]] = defaultdict(set)
        """Records that were answered as not appended, and are not retried."""
        self.counts: Counter[str] = Counter()

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def tokens(self, key: Key, producer: str, sequence: int, records: int) -> list[Token]:
        """The records of an append, the same in every attempt."""
        self.sizes[key, producer, sequence] = records
        return [f"{key[1]}/{producer}/{sequence}/{index}".encode() for index in range(records)]

    def is_early(self, topic_id: str, producer: str, sequence: int) -> bool:
        """Whether an earlier one is not acknowledged: a producer appends one after the other."""
        return any(
            not acknowledged
            for (key, of), begun in self.appends.items()
            for earlier, acknowledged in begun.items()
            if (key[0], of) == (topic_id, producer) and earlier < sequence
        )

    def acknowledged(self, topic_id: str, producer: str) -> list[tuple[int, int]]:
        """Partition and sequence of the acknowledged appends, in order."""
        return sorted(
            (key[1], sequence)
            for (key, of), begun in self.appends.items()
            for sequence, acknowledged in begun.items()
            if (key[0], of) == (topic_id, producer) and acknowledged
        )

    def lose(self, key: Key, lost: AbstractSet[Token]) -> None:
        """These records were lost with all their storage: their producers retry."""
        for (of, producer), begun in self.appends.items():
            for sequence in begun if of == key else ():
                records = self.sizes[of, producer, sequence]
                if lost & set(self.tokens(of, producer, sequence, records)):
                    begun[sequence] = False

    def any_unclean(self, topic_id: str) -> bool:
        """Whether a partition of the topic has lost acknowledged records, and producer state with them."""
        return any(history.unclean for key, history in self._oracle.histories.items() if key[0] == topic_id)

    def acknowledge(self, key: Key, tokens: Sequence[Token], report: Report) -> str:
        """Compare the answer of an ``acks=all`` append of one partition with the oracle; returns the outcome.

        Raises: Violation.
        """
        (row,) = report.rows
        outcome = str(row["outcome"])
        if outcome not in ("acknowledged", "duplicate"):
            return outcome
        if outcome == "duplicate" and row["base_offset"] is None:
            return outcome  # so long ago that its place is unknown: an earlier acknowledgement had it
        base, end = int(str(row["base_offset"])), int(str(row["next_offset"]))
        history = self._oracle.history(key)
        if history.unclean:
            return outcome
        if end - base != len(tokens):
            raise Violation(f"I1: {len(tokens)} records were acknowledged at [{base}, {end})")
        for offset, token in enumerate(tokens, base):
            history.commit(offset, token, "by its acknowledgement")
        history.acknowledged = max(history.acknowledged, end)
        self._oracle.changed[key] = None
        return outcome

    def excuse_corruption(self, topic_partition: str, what: str) -> None:
        """Storage was called corrupt. Raises: Violation (I10), unless a bit was flipped, an unclean election has
        left contradicting histories, or the topic is the temporary one.
        """
        for topic_id, partition in self._damage.partitions:
            topic = self._oracle.image.topics.get(topic_id)
            if not topic_partition or topic is None or topic_partition == f"{topic.name}-{partition}":
                self.count("damage was found")
                return
        if topic_partition == "u-0" and self._oracle.counts["deleted topics"]:
            self.count("corruption in a topic that is being deleted")
            return
        if any(history.was_put_back for history in self._oracle.histories.values()):
            self.count("corruption after all replicas were put back")
            return
        unclean = [key for key, history in self._oracle.histories.items() if history.unclean]
        for key in unclean:
            topic = self._oracle.image.topics.get(key[0])
            if not topic_partition or topic is None or topic_partition == f"{topic.name}-{key[1]}":
                self.count("corruption after an unclean election")
                return
        raise Violation(f"I10: sound storage is called corrupt: {topic_partition} {what}")

    def check_accounts(self) -> None:
        """Check at the end that each acknowledged record exists exactly once, and that no record exists that was
        not appended.

        Raises: Violation.
        """
        for (key, producer), begun in self.appends.items():
            history = self._oracle.history(key)
            if history.unclean:
                continue
            for sequence, acknowledged in begun.items():
                for token in self.tokens(key, producer, sequence, self.sizes[key, producer, sequence]):
                    if acknowledged != (token in history.offsets):
                        raise Violation(
                            f"I1: {token!r} was acknowledged: {acknowledged}, and is not so in the log"
                        )
        for key, tokens in self.never.items():
            history = self._oracle.history(key)
            lied = tokens & history.offsets.keys()
            if lied and not history.unclean:
                raise Violation(f"I3: {min(lied)!r} was called not appended, and is in the log")
