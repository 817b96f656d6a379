"""Faults of roots and processes, and the bound within which the protocol keeps its promises.

The rule: a root is wiped, or restored from an older copy, only while every partition with this root in its ISR has
another member there whose storage is sound; and never that of a metadata voter, unless a majority of the voters
stays untouched. (A restored voter is not detected, because the metadata log trusts its directory id. So voters are
wiped, never restored.) Storage that is temporarily away, or full, returns before the end.

A bit is flipped only if there are other good bytes of the committed records, or of a register on another member of
the ISR; and as long as another member of the ISR is intact. The only copy of unacknowledged records may be damaged
before it is read; of several copies one stays good, because they were good when they were made, and are not read
again. No root with the last good bytes of a record is lost.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from stratalog.partitions.paths import BROKER_FILE, DataName, EpochName, LocalStartName, base_name, parse_name
from stratalog.partitions.root import BrokerFile
from tests.simulation.names import name_in_short
from tests.simulation.oracle import Key, Oracle

if TYPE_CHECKING:
    from tests.simulation.world import World

_FLIP_TRIES = 10
"""The number of objects to try for one that the bound allows."""


class Events:
    """Changes the world; changes outside the bound do not happen."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._backups: dict[int, dict[str, bytes]] = {}
        self._formatted = 0
        self._lost_voters: set[int] = set()
        self._copy_of_all: dict[int, dict[str, bytes]] = {}
        """The replicas of the topic on all brokers, by broker, at one moment ..."""
        self._copied_ends: dict[int, int] = {}
        """... and the acknowledged ends then, by partition."""
        self._all_copied: dict[int, dict[str, bytes]] = {}
        """The content of all brokers, including the metadata, at one moment ..."""
        self._oracle_then: Oracle | None = None
        """... and the oracle then."""
        self._put_back_once = False
        self.restart = lambda slot: None
        """Restarts the job of a slot."""

    def apply(self, what: str, target: int) -> None:
        done = getattr(self, f"_{what}")(target)
        if done is not False:
            self._world.ledger.count(f"event: {what}")
        self._world.note_event(f"{what} {target}" + (" (not allowed now)" if done is False else ""))

    def mend_all(self) -> None:
        """End the temporary faults."""
        for broker in self._world.roots:
            self._mend(broker)
        self._world.page = 0

    def _cut(self, broker: int) -> None:
        self._world.roots[broker].reachable = False

    def _fill(self, broker: int) -> None:
        self._world.roots[broker].full = True

    def _mend(self, broker: int) -> None:
        root = self._world.roots[broker]
        root.reachable, root.full = True, False

    def _double(self, slot: int) -> None:
        """Start another driver, as if the first one were dead."""
        self.restart(slot)

    def _restart(self, slot: int) -> None:
        self.restart(slot)

    # --------------------------------------------------------------------------- lost storage

    def may_lose(self, broker: int) -> bool:
        """The rule of the bound."""
        world = self._world
        if broker in world.voters and len(self._lost_voters | {broker}) * 2 >= len(world.voters):
            return False
        image = world.oracle.image
        return all(
            world.copies.whole_members((topic_id, partition.partition), broker)
            for topic_id, topic in image.topics.items()
            for partition in topic.partitions
            if broker in partition.isr or broker in partition.adding
        ) and all(world.copies.lost(key, without=broker) is None for key in world.damage.partitions)

    def _wipe(self, broker: int) -> bool | None:
        """Replace the disk by an empty one, which is not formatted."""
        if not self.may_lose(broker):
            return False
        if broker in self._world.voters:
            self._lost_voters.add(broker)
        self._world.roots[broker].wipe()
        return None

    def _replace(self, broker: int) -> bool | None:
        """Replace the disk by a formatted one, which is not registered."""
        if self._wipe(broker) is False:
            return False
        self._format(broker)
        return None

    def _format(self, broker: int) -> None:
        self._formatted += 1
        fresh = BrokerFile(cluster_id="c", broker_id=broker, directory_id=f"{0xF0000000 + self._formatted:032x}")
        self._world.roots[broker].create(BROKER_FILE, msgspec.json.encode(fresh), self._world.time.ms)

    def _backup(self, broker: int) -> None:
        self._backups[broker] = self._world.roots[broker].snapshot()

    def _restore(self, broker: int) -> bool | None:
        """Replace the disk by a copy of its earlier content."""
        if broker not in self._backups or broker in self._world.voters or not self.may_lose(broker):
            return False
        self._world.roots[broker].restore(self._backups[broker], self._world.time.ms)
        return None

    # --------------------------------------------------------------------------- all brokers at once

    def _copy(self, _: int) -> None:
        """Copy the topic's replicas on all brokers, like a snapshot of a machine's disk."""
        self._copy_of_all = {broker: dict(self._of_topic(broker)) for broker in self._world.roots}
        self._copied_ends = {key[1]: self._world.oracle.history(key).acknowledged for key in self._keys()}

    def _put_back(self, number: int) -> bool | None:
        """Replace the topic's replicas on all brokers by the copy, or by nothing if ``number`` is odd. All
        processes on that machine end."""
        world = self._world
        if self._put_back_once or not (number % 2 or self._copy_of_all):
            return False
        self._put_back_once = True
        for driver in world.scheduler.drivers.values():
            driver.kill()
        for broker, root in world.roots.items():
            kept = {} if number % 2 else self._copy_of_all[broker]
            for name, _ in self._of_topic(broker):
                root.delete(name)
            for name, data in sorted(kept.items()):
                root.create(name, data, world.time.ms)
        for key in self._keys():
            live = world.tables[key[0]].live.values()
            end = max((one.segment.next_offset for one in live if one.segment.partition == key[1]), default=0)
            held = 0 if number % 2 else self._copied_ends.get(key[1], 0)
            ends = [self._log_end(broker, key) for broker in self._replicas(key)]
            history = world.oracle.history(key)
            if end >= held and all(one < end for one in ends) and not history.unclean:
                world.ledger.lose(key, history.put_back(end))
                world.ledger.count("put back behind the remote log")
            else:  # the loss is unknown: an operator decides
                history.forget()
                world.abandoned = True
        for slot in range(len(world.configuration.operations)):
            self.restart(slot)
        return None

    def _copy_all(self, _: int) -> None:
        """Copy all brokers with their metadata, below their ``broker.json``."""
        world = self._world
        self._all_copied = {broker: _but_identity(root.snapshot()) for broker, root in world.roots.items()}
        self._oracle_then = world.oracle.copy(world.batch)
        self._oracle_then.histories = {key: one.copy() for key, one in world.oracle.histories.items()}

    def _put_back_all(self, _: int) -> bool | None:
        """Replace the content of all brokers by the copy; the remote tier is unchanged."""
        world, then = self._world, self._oracle_then
        if self._put_back_once or then is None:
            return False
        self._put_back_once = True
        for driver in world.scheduler.drivers.values():
            driver.kill()
        for broker, root in world.roots.items():
            for name in _but_identity(root.snapshot()):
                root.delete(name)
            for name, data in sorted(self._all_copied[broker].items()):
                root.create(name, data, world.time.ms)
        starts = {key: world.oracle.image.partition(*key).log_start_offset for key in self._keys()}
        world.oracle.go_back(then)
        world.invariants.states.clear()
        for key in self._keys():
            now, before = world.oracle.history(key), then.history(key)
            live = world.tables[key[0]].live.values()
            end = max((one.segment.next_offset for one in live if one.segment.partition == key[1]), default=0)
            ends = [self._log_end(broker, key) for broker in self._replicas(key)]
            world.ledger.never.pop(key, None)
            if starts[key] > world.oracle.image.partition(*key).log_start_offset:
                now.forget()  # removed records are missing now, and an operator confirms the loss
                world.abandoned = True
            elif end <= before.acknowledged:  # later acknowledged records are lost without a trace
                world.ledger.lose(key, now.offsets.keys() - before.offsets.keys())
                world.oracle.histories[key] = before
                world.ledger.count("put back to an earlier moment")
            elif all(one < end for one in ends):
                world.ledger.lose(key, now.put_back(end))
                world.ledger.count("put back behind the remote log, with the metadata")
            else:
                now.forget()
                world.abandoned = True
            world.oracle.history(key).was_put_back = True
        for slot in range(len(world.configuration.operations)):
            self.restart(slot)
        return None

    def _lose_all(self, number: int) -> bool | None:
        """Delete the folders of all replicas of a partition. Calls in flight may still arrive."""
        world = self._world
        key = self._keys()[number % len(self._keys())]
        history = world.oracle.history(key)
        if self._put_back_once or history.unclean:
            return False
        self._put_back_once = True
        for driver in world.scheduler.drivers.values():
            if not driver.on_its_way:
                driver.kill()
        for broker in self._replicas(key):
            root, folder = world.roots[broker], world.invariants.folder(broker, key)
            for name in list(root.folders.get(folder, {})):
                root.delete(name)
        if known := world.oracle.image.partition(*key).written_to:
            world.ledger.lose(key, history.lose_all(known))
            world.ledger.count("lost, and known to have been written to")
        else:
            history.forget()
            world.abandoned = True
        for slot in range(len(world.configuration.operations)):
            self.restart(slot)
        return None

    def _keys(self) -> list[Key]:
        topic = self._world.oracle.image.topics[self._world.topic_id]
        return [(topic.topic_id, partition.partition) for partition in topic.partitions]

    def _replicas(self, key: Key) -> tuple[int, ...]:
        return self._world.oracle.image.partition(*key).replicas

    def _of_topic(self, broker: int) -> Iterator[tuple[str, bytes]]:
        """The files of the topic's replicas on a broker."""
        root = self._world.roots[broker]
        for key in self._keys():
            if broker in self._replicas(key):
                entries = root.folders.get(self._world.invariants.folder(broker, key), {})
                yield from [(name, data) for name, (_, data) in entries.items()]

    def _log_end(self, broker: int, key: Key) -> int:
        return self._world.invariants.state(broker, self._world.invariants.folder(broker, key)).log.log_end

    # --------------------------------------------------------------------------- flipped bits

    def _flip(self, number: int) -> bool | None:
        """Flip a bit of an object of a replica, or of the remote tier; the number selects it."""
        world = self._world
        rng = random.Random(f"flip {world.configuration.seed} {number}")
        places = list(self._flippable())
        rng.shuffle(places)
        kind = rng.choice((DataName, EpochName, LocalStartName))  # of registers there are fewer
        places.sort(key=lambda place: not isinstance(parse_name(base_name(place[2])), kind))
        for key, broker, name in places[:_FLIP_TRIES]:
            root = world.remote if broker is None else world.roots[broker]
            if not self._may_flip(key, broker, name):
                continue
            parsed = parse_name(base_name(name))
            if isinstance(parsed, DataName) and world.copies.is_unacknowledged(key, name):
                early = world.damage.early.get(key, parsed.base_offset)
                world.damage.early[key] = min(early, parsed.base_offset)
            at = world.damage.flip(root, name, key, rng.randrange)
            world.note_event(f"byte {at} of {name_in_short(name)} on {root.place}")
            return None
        return False

    def _flippable(self) -> Iterator[tuple[Key, int | None, str]]:
        world = self._world
        for topic_id, topic in sorted(world.oracle.image.topics.items()):
            for partition in topic.partitions:
                key = topic_id, partition.partition
                for broker in partition.replicas:
                    folder = world.invariants.folder(broker, key)
                    for name in sorted(world.roots[broker].folders.get(folder, {})):
                        if isinstance(parse_name(base_name(name)), DataName | EpochName | LocalStartName):
                            yield key, broker, name
                for name, _ in world.copies.remote(key):
                    yield key, None, name

    def _is_last_of_move(self, key: Key, broker: int, members: Sequence[int]) -> bool:
        """Whether a broker may be the only sound replica that a reassignment leaves. Its copies were verified when
        they were made, and neither its way into the ISR nor the end of the reassignment reads them again.
        """
        partition = self._world.invariants.partition(key)
        return (
            partition is not None
            and broker in partition.target
            and not any(member in partition.target for member in members)
        )

    def _may_flip(self, key: Key, broker: int | None, name: str) -> bool:
        world = self._world
        root = world.remote if broker is None else world.roots[broker]
        found = root.get(name)
        if found is None or world.oracle.history(key).unclean or world.damage.is_bad(found[1]):
            return False
        members = world.copies.whole_members(key, -1 if broker is None else broker)
        register = parse_name(base_name(name))
        if isinstance(register, EpochName):
            folders = (f"{world.invariants.folder(member, key)}/{register}" for member in members)
            return any(world.roots[m].get(path) is not None for m, path in zip(members, folders, strict=True))
        if isinstance(register, LocalStartName):  # it holds no record; any intact member knows where a log starts
            return bool(members)
        if broker is not None and self._is_last_of_move(key, broker, members):
            return False
        if broker is not None and world.copies.is_unacknowledged(key, name):
            copies = world.copies.elsewhere(key, broker, name)
            if copies and not any(copies):
                return False
        return bool(members) and world.copies.lost(key, of=(broker, name)) is None


def _but_identity(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name != BROKER_FILE}
