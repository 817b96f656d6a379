"""The rights of each operation on storage: the table in SECURITY.md, and the rights that the tests allow.

One letter per right: ``l`` list, ``r`` read, ``c`` create, ``d`` delete. Every operation reads ``broker.json`` of
the roots that it uses; a row has the rights for a run that has work to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stratalog.partitions.errors import Right

LETTERS: Mapping[str, Right] = {"l": "list", "r": "read", "c": "create", "d": "delete"}
PLACES: Mapping[str, str] = {
    "voters": "voters",
    "leader": "leader",
    "followers": "followers",
    "internal": "internal topics",
    "remote": "remote",
    "delta": "Delta log",
    "new": "new roots",
}
"""The places: the folders of the metadata log, of the tiering schedule and of the memory of upkeep; those of the
leader's and the followers' replicas; those of replicas of the engine's own topics; objects in the remote tier; the
logs of its tables; the ``broker.json`` of roots that are formatted."""

READ = "lr"
WRITE = "lrc"
ALL = "lrcd"


@dataclass(frozen=True, slots=True)
class Needs:
    operation: str
    places: Mapping[str, str]
    """Letters by place; an absent place needs no rights."""
    if_refused: str = ""
    """The outcome without the rights to create or delete, unless the operation fails."""

    def right_of(self, place: str) -> frozenset[Right]:
        """The rights on a path."""
        return frozenset(LETTERS[letter] for letter in self.places.get(place, ""))


def needs(operation: str, if_refused: str = "", /, **places: str) -> Needs:
    return Needs(operation, places, if_refused)


RIGHTS = (
    # Readers
    needs("open", voters=READ),
    needs("describe", voters=READ, leader=READ, followers=READ, internal=READ, delta=READ),
    needs("health", voters=READ, leader=READ, followers=READ, internal=READ, delta=READ),
    needs("quorum.describe, brokers.list, topics.list, policy", voters=READ),
    needs("fetch, tail", voters=READ, leader=READ),
    needs("fetch of tiered records", voters=READ, leader=READ, remote="r", delta=READ),
    needs("offsets, plan_read", voters=READ, leader=READ, remote="r", delta=READ),
    needs("groups.committed, groups.lag, groups.list", voters=READ, leader=READ, internal=READ),
    needs("read_snapshot", voters=READ, leader=READ),
    needs("snapshots, metrics", voters=READ, internal=READ),
    needs("transactions.list", voters=READ, internal=READ),
    needs("transactions.find_hanging, epochs", voters=READ, leader=READ),
    needs("reassignments, plan_replicas", voters=READ),
    needs("discarded", voters=READ, leader=READ, followers=READ, internal=READ),
    needs("recover", voters=READ, leader=READ, followers=READ, internal="l"),
    needs("verify", voters=READ, leader=READ, followers=READ, internal=READ, remote=READ, delta=READ),
    needs("drill", voters=READ, leader=READ, remote=READ, delta=READ),
    # Producers
    needs("append, acks=leader", voters=READ, leader=WRITE),
    needs(
        "append, acks=all",
        "followers: they leave the ISR, if voters allow it",
        voters=READ,
        leader=WRITE,
        followers="lc",
    ),
    needs("groups.commit", voters=READ, leader=READ, internal=WRITE),
    needs(
        "transactions.begin",
        "followers: they leave the ISR, if voters allow it",
        voters=READ,
        leader=WRITE,
        followers="lc",
        internal=WRITE,
    ),
    # Operators
    needs(
        "transactions.abort, transactions.finish",
        "followers: they leave the ISR, if voters allow it",
        voters=READ,
        leader=WRITE,
        followers="lc",
        internal=WRITE,
    ),
    needs("groups.reset_offsets", voters=READ, leader=READ, internal=WRITE, delta=READ),
    needs("groups.delete_offsets, groups.delete", voters=READ, internal=WRITE),
    needs("replicate", voters=WRITE, leader=READ, followers=WRITE, internal=READ, delta=READ),
    needs("merge", voters=READ, leader=WRITE, internal=READ, delta=READ),
    needs("compact", voters=WRITE, leader=WRITE, followers=WRITE, remote=WRITE, delta=WRITE),
    needs(
        "tier",
        "voters: the list of due partitions is not kept",
        voters=WRITE,
        leader=READ,
        remote=WRITE,
        delta=WRITE,
    ),
    needs("heal", voters=WRITE, leader=READ, followers=WRITE, internal=READ, remote=READ, delta=READ),
    needs("retain", voters=READ, leader=ALL, followers=ALL, internal=READ, remote=READ, delta=READ),
    needs("snapshot", voters=WRITE, leader=WRITE, followers=ALL),
    needs("snapshot with a table", voters=WRITE, leader=WRITE, followers=ALL, remote=WRITE, delta=WRITE),
    needs("quorum.snapshot", voters=ALL),
    needs("vacuum", voters="lrd", leader="lrd", followers="lrd", internal="lrd", remote="lrd", delta=READ),
    # Administrators
    needs("format", voters=WRITE, new="c"),
    needs("restore", voters=WRITE, leader=WRITE, followers=WRITE, remote=WRITE, delta=WRITE, new="c"),
    needs("bootstrap", voters=WRITE, leader=READ, followers="lc", internal=WRITE, delta=READ, new="c"),
    needs("brokers.add", voters=WRITE, new="c"),
    needs("brokers.register, brokers.decommission", voters=WRITE),
    needs("quorum.add_voter, quorum.remove_voter", voters=WRITE),
    needs("quorum.replace_voter", voters=WRITE),
    needs("sign", voters=ALL),
    needs(
        "topics.create, topics.create_partitions, topics.alter, topics.alter_configs, topics.protect", voters=WRITE
    ),
    needs("topics.delete_records", voters=WRITE, leader=READ),
    needs("erase", voters=WRITE, leader=ALL, followers=ALL, internal="l", remote="l"),
    needs("erase, tiered", voters=WRITE, leader=ALL, followers=ALL, internal="l", remote=ALL, delta=ALL),
    needs("elect", voters=WRITE),
    needs("brokers.fence, brokers.unfence", voters=WRITE),
    needs("reassign", voters=WRITE, leader=READ, followers=WRITE),
    needs("cancel_reassignments", voters=WRITE),
    needs("topics.delete", voters=WRITE, leader="ld", followers="ld", remote="ld", delta=ALL),
)


def as_markdown() -> str:
    """The table."""
    lines = [
        "| operation | " + " | ".join(PLACES.values()) + " | where creating or deleting is refused |",
        "|---" * (len(PLACES) + 2) + "|",
    ]
    for row in RIGHTS:
        cells = [", ".join(LETTERS[letter] for letter in row.places.get(place, "")) or "-" for place in PLACES]
        lines.append(f"| {row.operation} | {' | '.join(cells)} | {row.if_refused or '-'} |")
    return "\n".join(lines)
