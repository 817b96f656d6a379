"""Faults of roots, and the bound within which the quorum keeps its promises.

The rule: storage is lost, damaged or permanently away only while a majority of every electorate that is in force,
or that a pending change may bring into force, stays sound without it. The one exception is a snapshot that is
damaged on every voter, while each of them can do without it. Storage that is temporarily away, or full, returns
before the end.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from stratalog.engine.metadata.records import ConfigRecord, ConfigResource, VoterId
from stratalog.engine.quorum.repeated import BatchRecords
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.numbers import GREATEST_EPOCH
from stratalog.partitions.paths import (
    BROKER_FILE,
    GREATEST_OFFSET,
    CheckpointName,
    ClaimName,
    DataName,
    Name,
    base_name,
    voter_path,
)
from stratalog.partitions.root import BrokerFile
from tests.quorum.remembering import broker_file_of, encoded, parsed_name, stand_in_for_batch
from tests.simulation.roots import Root

if TYPE_CHECKING:
    from tests.quorum.world import World

Electorate = tuple[VoterId, ...]


class Events:
    """Changes the world; changes outside the bound do not happen."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"damage {world.configuration.seed}")
        self.gone: set[int] = set()
        """Brokers that are permanently away."""
        self.damaged: dict[str, set[str]] = {}
        """Names of files with a flipped bit, keyed by directory id."""
        self.lost: set[str] = set()
        """Directory ids of unreliable storage."""
        self.changing: list[tuple[str, int]] = []
        """Pending changes of voters: ``add``, ``remove`` or ``replace``, and the broker."""
        self.restart = lambda slot: None
        """Restarts the job of a slot."""
        self._formatted = 0
        self.forged: list[tuple[Root, str]] = []
        """The files of the attacker."""

    def apply(self, what: str, target: int) -> None:
        done = getattr(self, f"_{what}")(target)
        if done is not False:
            self._world.counts[f"event: {what}"] += 1
        self._world.note_event(f"{what} {target}" + (" (not allowed now)" if done is False else ""))

    def calm(self) -> None:
        """End the temporary faults."""
        for broker in self._world.roots:
            if broker not in self.gone:
                self._repair(broker)
        self._world.page = 0

    def repair_everything(self) -> None:
        """Bring back the storage that was permanently away, and remove the files of the attacker."""
        for root, path in self.forged:
            root.delete(path)
        self.gone.clear()
        self.calm()

    # ------------------------------------------------------------------------------ the bound

    def electorates(self) -> list[Electorate]:
        """All electorates in force, or that a pending change may bring into force."""
        history = self._world.history
        found = [history.image.voters, *history.voters_ahead()]
        for what, broker in self.changing:
            steps = ("remove", "add") if what == "replace" else (what,)
            found += [self._changed(voters, step, broker) for voters in list(found) for step in steps]
        return [voters for voters in dict.fromkeys(found) if voters]

    def _changed(self, voters: Electorate, what: str, broker: int) -> Electorate:
        kept = tuple(voter for voter in voters if voter.broker_id != broker)
        if what == "remove":
            return kept
        there = self._world.directory_of(broker)
        return (*kept, VoterId(broker, there)) if there else voters

    def is_sound(self, voter: VoterId) -> bool:
        """Whether the storage of the broker is unchanged, and returns if it is away."""
        directory = self._world.directory_of(voter.broker_id)
        return directory == voter.directory_id and directory not in self.lost and voter.broker_id not in self.gone

    def may_lose(self, broker: int) -> bool:
        """The rule of the bound."""
        return all(self._holds(voters, without=broker) for voters in self.electorates())

    def may_change(self, what: str, broker: int) -> bool:
        """Whether a change of voters keeps the rule."""
        return all(
            self._holds(voters) and self._holds(self._changed(voters, what, broker))
            for voters in self.electorates()
        )

    def _holds(self, voters: Electorate, without: int | None = None) -> bool:
        sound = [voter for voter in voters if voter.broker_id != without and self.is_sound(voter)]
        return 2 * len(sound) > len(voters)

    # --------------------------------------------------------------------------------- away

    def _cut(self, broker: int) -> None:
        self._world.roots[broker].reachable = False

    def _fill(self, broker: int) -> None:
        self._world.roots[broker].full = True

    def _repair(self, broker: int) -> None:
        root = self._world.roots[broker]
        root.reachable, root.full = broker not in self.gone, False

    def _leave(self, broker: int) -> bool | None:
        if not self.may_lose(broker):
            return False
        self.gone.add(broker)
        self._cut(broker)
        return None

    def _outage(self, broker: int) -> None:
        """Take a majority away."""
        voters = [voter.broker_id for voter in self._world.history.image.voters]
        at = voters.index(broker) if broker in voters else 0
        for away in (voters[at:] + voters[:at])[: len(voters) // 2 + 1]:
            self._cut(away)

    def _repair_all(self, broker: int) -> None:
        for each in self._world.roots:
            self._repair(each)

    def _double(self, slot: int) -> None:
        """Start another process in the slot, as if the first one were dead."""
        self.restart(slot)

    def _restart(self, slot: int) -> None:
        self.restart(slot)

    # --------------------------------------------------------------------------- lost storage

    def _wipe(self, broker: int) -> bool | None:
        """Replace the disk by an empty one, which is not formatted."""
        if not self.may_lose(broker):
            return False
        self.replace_disk(broker)
        return None

    def replace_disk(self, broker: int) -> None:
        self._world.roots[broker].wipe()
        self._world.counts["voters wiped"] += 1

    def format(self, broker: int) -> None:
        """Write a ``broker.json`` into a root without one."""
        root = self._world.roots[broker]
        if root.get(BROKER_FILE) is None:
            self._formatted += 1
            fresh = BrokerFile(
                cluster_id="c", broker_id=broker, directory_id=f"{0xF0000000 + self._formatted:032x}"
            )
            root.create(BROKER_FILE, msgspec.json.encode(fresh), self._world.now_ms())

    def _damage(self, broker: int) -> bool | None:
        """Flip a bit of some file of a voter. Another voter has the file intact."""
        directory = self._world.directory_of(broker)
        if not directory or not self.may_lose(broker):
            return False
        history, root = self._world.history, self._world.roots[broker]
        names = [
            stored.name
            for stored in root.listing(voter_path(directory))
            if isinstance(name := parsed_name(base_name(stored.name)), CheckpointName)
            or (isinstance(name, DataName) and name in history.files and self._is_elsewhere(name, broker))
        ]
        names = [name for name in names if not self._is_copied(broker, name)]
        if not names:
            return False
        self.lost.add(directory)
        self._flip(root, directory, self._rng.choice(names))
        return None

    def _stranger(self, broker: int) -> bool | None:
        """Write files into a voter's folder that no driver would write."""
        directory = self._world.directory_of(broker)
        if not directory or not self.may_lose(broker):
            return False
        self.lost.add(directory)
        root, rng = self._world.roots[broker], self._rng
        for _ in range(rng.randint(1, 4)):
            name = f"{voter_path(directory)}/{self._name_of_a_stranger()}"
            if root.get(name) is None:
                root.create(name, rng.randbytes(rng.choice((0, 1, 24, 300))), self._world.now_ms())
                self.damaged.setdefault(directory, set()).add(base_name(name))
        return None

    def _name_of_a_stranger(self) -> ClaimName | DataName | CheckpointName:
        """A name far above the known ones, or near them."""
        rng, world = self._rng, self._world
        epoch = rng.choice((GREATEST_EPOCH, world.claims + 5_000_000, world.claims + rng.randint(-2, 3)))
        offset = rng.choice((GREATEST_OFFSET, world.history.end + rng.randint(-3, 3)))
        epoch, offset = max(epoch, 1), max(offset, 1)
        return rng.choice((ClaimName(epoch), DataName(offset, None, epoch), CheckpointName(offset, epoch)))

    def _is_elsewhere(self, name: DataName, broker: int) -> bool:
        return any(
            voter.broker_id != broker
            and self.is_sound(voter)
            and name in self._world.whole_names(voter.broker_id, voter.directory_id)
            for voter in self._world.history.image.voters
        )

    def _is_copied(self, broker: int, name: str) -> bool:
        """Whether a process is about to read the file, and may already have verified it."""
        drivers = self._world.scheduler.drivers.values()
        return any(one.object == name and one.place == str(broker) and not one.done for one in drivers)

    def _damage_all(self, broker: int) -> bool | None:
        """Flip a bit of the latest snapshot on each voter that has it, if all of them can do without it."""
        world = self._world
        voters = [voter for voter in world.history.image.voters if self.is_sound(voter)]
        names = {voter: world.whole_names(voter.broker_id, voter.directory_id) for voter in voters}
        latest = max(world.history.snapshots, default=None)
        if latest is None or len(voters) < len(world.history.image.voters):
            return False
        serves = world.history.serves
        if any(serves(held) and not serves(held - {latest}) for held in names.values()):
            return False
        return self._rot(broker)

    def _rot(self, broker: int) -> bool | None:
        """Flip such a bit even if the voters cannot do without the snapshot. The product promises that they can,
        as long as the log start moves only to the second latest snapshot.
        """
        world, voters = self._world, self._world.history.image.voters
        latest = max(world.history.snapshots, default=None)
        names = {voter: world.whole_names(voter.broker_id, voter.directory_id) for voter in voters}
        having = [voter for voter, held in names.items() if latest in held]
        if not having or any(
            self._is_copied(voter.broker_id, f"{voter_path(voter.directory_id)}/{latest}") for voter in having
        ):
            return False
        for voter in having:
            path = f"{voter_path(voter.directory_id)}/{latest}"
            self._flip(world.roots[voter.broker_id], voter.directory_id, path)
        return None

    def _forge(self, broker: int) -> bool | None:
        """Let an attacker without the cluster's key add a file to a voter: under the next name, or an invented
        one; with content that would be right if it were signed, or that was signed for another name. (An attacker
        who deletes files shows an earlier state of the storage, against which a key does not help.)
        """
        world, rng = self._world, self._rng
        directory = world.directory_of(broker)
        if not directory or not self.may_lose(broker):
            return False
        end, epoch = world.history.end, world.claims + rng.choice((0, 0, 1, 1, 2, 5))
        name: Name = rng.choice(
            (
                DataName(end, None, epoch),
                DataName(end, None, epoch),
                DataName(max(0, end - rng.randint(1, 3)), None, epoch),
                ClaimName(epoch + rng.choice((0, 1, 2, 1000))),
                ClaimName(epoch + 1, f"{rng.getrandbits(128):032x}"),
                CheckpointName(end, epoch),
                CheckpointName(end + rng.randint(1, 3), epoch),
                CheckpointName(max(1, end - rng.randint(0, 3)), max(1, epoch - 1)),
            )
        )
        root, folder = world.roots[broker], voter_path(directory)
        path = f"{folder}/{name}"
        self.lost.add(directory)
        if root.create(path, self._forged(root, folder, name), world.now_ms()):
            self.forged.append((root, path))
            if not isinstance(name, ClaimName):
                self.damaged.setdefault(directory, set()).add(str(name))
        return None

    def _forged(self, root: Root, folder: str, name: Name) -> bytes:
        records = [ConfigRecord(resource=ConfigResource.CLUSTER, name="", key="evil", value="1")]
        signed = [data for path, (_, data) in root.folders.get(folder, {}).items() if path.endswith(".parquet")]
        if isinstance(name, DataName):
            if signed and self._rng.random() < 0.3:
                return self._rng.choice(signed)
            lineage = Lineage([(name.epoch, name.base_offset)] if name.base_offset else [(name.epoch, 0)])
            encode = encoded if self._world.configuration.real_files else stand_in_for_batch
            return encode("c", BatchRecords.of(name, records, 0), lineage)
        return b"somebody"

    def _flip(self, root: Root, directory: str, path: str) -> None:
        """Flip a bit without changing the object's identity, as a disk does."""
        folder, _, name = path.rpartition("/")
        stored, data = root.folders[folder][path]
        at = self._rng.randrange(len(data))
        flipped = data[:at] + bytes([data[at] ^ (1 << self._rng.randrange(8))]) + data[at + 1 :]
        root.folders[folder][path] = (stored, flipped)
        self.damaged.setdefault(directory, set()).add(name)


def directory_in(root: Root) -> str:
    """The directory id of a root; empty if it has none."""
    found = root.get(BROKER_FILE)
    return "" if found is None else broker_file_of(found[1]).directory_id
