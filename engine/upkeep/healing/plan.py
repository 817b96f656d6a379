"""Plans the repair of a partition: the replicas that must first leave the ISR, and the good files (``sources``)
for each damaged file. Pure.

A damaged replica leaves the ISR before it is changed. A damaged leader resigns to an intact member. If there is no
intact member, the other damaged members leave the ISR, and the leader remains the last member and is repaired in
place. If a merged segment is damaged on all replicas, it is removed, and the files that it covered are part of the
log again. If some offsets have no good file, the partition is not changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from stratalog.engine.driver.run import Row
from stratalog.engine.replicas.repair import BadEpoch, BadFile, BadLocalStart, Copy, Damage, Missing, Repair
from stratalog.engine.upkeep.healing.sources import GoodFiles, Offsets, cover
from stratalog.engine.upkeep.verification.audit import Audited
from stratalog.engine.upkeep.verification.findings import offsets
from stratalog.engine.upkeep.verification.structure import PartitionStructure, ReplicaStructure
from stratalog.partitions.errors import CorruptionError, LeaderNotAvailableError, LogGapError
from stratalog.partitions.paths import DataName


class HealRow(Row, frozen=True, kw_only=True):
    """A row of the report: damage at offsets ``[start, end)``, and the outcome."""

    topic: str
    partition: int | None = None
    """The partition; None for the topic's remote table."""
    broker: int | None = None
    """The broker; None for the remote tier."""
    damage: str
    start: int | None = None
    end: int | None = None
    source: str | None
    outcome: str


@dataclass(frozen=True, slots=True)
class HealPlan:
    leader: int
    """The leader after the damaged replicas have left the ISR."""
    resigns: bool
    """Whether the current leader resigns in favor of ``leader``."""
    leaving: tuple[int, ...]
    """The replicas, other than a resigning leader, that leave the ISR or are no longer being added. These are the
    damaged replicas, and, if the leader is repaired in place, all replicas that were being added.
    """
    in_place: bool
    """Whether a damaged leader remains the leader and is repaired. During the repair it must be the only member of
    the ISR, and no replica may be in the process of being added.
    """
    repairs: tuple[Repair, ...]
    unrepaired: tuple[CorruptionError, ...] = ()
    """The damage that is not repaired, with the remedy."""
    forgotten: tuple[Offsets, ...] = ()
    """Offsets, at or above the new leader's log end, that have no good copy. All members of the ISR have all
    committed records. So if the new leader still lacks these offsets, they were never committed. They are
    truncated, as in any election.
    """
    notes: tuple[str, ...] = ()
    """Warnings about the sources of the repairs."""


def plan_heal(each: Audited) -> HealPlan | None:
    """The plan to repair a partition; None if there is nothing to do.

    Raises: LogGapError for offsets without a good copy; LeaderNotAvailableError; CorruptionError if no member of
    the ISR can lead, or if the only damage is a register that cannot be replaced.
    """
    damages = [(f.broker_id, f.damage) for f in each.findings if f.broker_id is not None and f.damage is not None]
    if not damages or each.looked is None:
        return None
    view, leader_id = each.replicas.view, each.replicas.view.leader
    if leader_id is None:
        raise LeaderNotAvailableError(f"{each.replicas} has no leader; elect one, then heal")
    damaged = {broker for broker, _ in damages}
    leader, in_place = leader_id, False
    if leader_id in damaged:
        fit = _fit_to_lead(each)
        in_place = not fit
        leader = leader_id if in_place else fit[0]
        others = set(view.isr) - damaged - {leader_id}
        if in_place and others:
            raise CorruptionError(
                f"{each.replicas}: its leader, broker {leader_id}, is damaged, and no other member of "
                f"the ISR is known to be intact: check brokers {sorted(others)} first"
            )
    sources = _CopySources(each, each.looked, leader)
    forgotten: set[Offsets] = set()
    unread = {broker for broker, damage in damages if isinstance(damage, BadEpoch) and damage.needed}
    repairs: list[Repair] = []
    holes: list[Offsets] = []
    unrepaired: list[CorruptionError] = []
    notes: list[str] = []
    lost_starts = {broker for broker, damage in damages if isinstance(damage, BadLocalStart)}
    for broker, damage in damages:
        if isinstance(damage, BadLocalStart):
            try:
                repairs.append(sources.local_start(broker, damage, lost_starts, in_place and broker == leader))
            except CorruptionError as error:
                unrepaired.append(error)
            continue
        put, lacking = sources.repair_of(broker, damage, in_place and broker == leader)
        beyond = [hole for hole in lacking if leader != leader_id and hole[0] >= sources.log_end]
        forgotten |= set(beyond)
        lacking = [hole for hole in lacking if hole not in beyond]
        if lacking and broker not in view.isr:
            unrepaired.append(_unneeded(each, lacking, broker))
            continue
        notes += [_uncompacted(each, copy, broker) for copy in put if not sources.is_compacted(copy)]
        register_of = sources.register_of(broker, damage, unread)
        starts_over = sources.starts_over(broker, damage, put)
        repairs.append(Repair(broker, damage, tuple(put), register_of, starts_over, forgotten=bool(beyond)))
        holes += lacking
    if holes:
        raise _hole(each, holes, damaged)
    if unrepaired and not repairs:
        raise unrepaired[0]
    aside = damaged & {*view.isr, *view.adding} | (set(view.adding) if in_place else set())
    return HealPlan(
        leader=leader,
        resigns=leader != leader_id,
        leaving=tuple(sorted(aside - {leader_id})),
        in_place=in_place,
        repairs=tuple(repairs),
        unrepaired=tuple(unrepaired),
        forgotten=tuple(sorted(forgotten)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _fit_to_lead(each: Audited) -> list[int]:
    """The intact members of the ISR other than the leader; the member with the most records is first."""
    assert each.looked is not None
    view = each.replicas.view
    wrong = {finding.broker_id for finding in each.findings if not finding.log_is_whole}
    fit = [
        look
        for look in each.looked.replicas
        if look.broker_id in view.isr and look.broker_id not in wrong and look.broker_id != view.leader
    ]
    return [
        look.broker_id for look in sorted(fit, key=lambda look: (-look.end, view.replicas.index(look.broker_id)))
    ]


def _hole(each: Audited, holes: Iterable[Offsets], damaged: Iterable[int]) -> LogGapError:
    ranges = ", ".join(offsets(start, end) for start, end in sorted(set(holes)))
    return LogGapError(
        f"{each.replicas}: {ranges}: no replica and no remote object has a good copy; brokers {sorted(damaged)} "
        "are damaged. Nothing was changed. Restore these records from a backup"
    )


def _uncompacted(each: Audited, copy: Copy, broker: int) -> str:
    return (
        f"{each.replicas}: {offsets(copy.held.start, copy.held.end)} on broker {broker} are repaired from "
        f"{copy.held.name} on broker {copy.place}. This copy predates the last compaction, and no copy made after "
        "it is good. So records of deleted keys may return: append tombstones for these keys again"
    )


def _unneeded(each: Audited, holes: Iterable[Offsets], broker: int) -> LogGapError:
    ranges = ", ".join(offsets(start, end) for start, end in sorted(set(holes)))
    return LogGapError(
        f"{each.replicas}: {ranges} on broker {broker}, outside the ISR: no good copy exists. "
        "Once the leader is intact, run replicate, which truncates uncommitted records"
    )


class _CopySources(GoodFiles):
    """The good files of a partition, for its damaged replicas."""

    def __init__(self, each: Audited, looked: PartitionStructure, leader: int) -> None:
        super().__init__(each, looked.lineage, leader)
        self._looks: dict[int, ReplicaStructure] = {look.broker_id: look for look in looked.replicas}
        self._view = each.replicas.view
        self._leader = leader

    @property
    def log_end(self) -> int:
        """The log end of the new leader."""
        return self._looks[self._leader].end if self._leader in self._looks else 0

    def repair_of(self, broker: int, damage: Damage, in_place: bool) -> tuple[list[Copy], list[Offsets]]:
        """The files that repair the damage, and the offsets that none of these files has."""
        match damage:
            case BadEpoch() | BadLocalStart():
                return [], []
            case Missing(start, end):
                low = self._view.log_start_offset if broker == self._leader else self._begin(broker)
                return self._cover(broker, max(start, low), end, None, in_place)
            case BadFile(file, start, end):
                return self._cover(broker, max(start, self._begin(broker)), end, file.name, in_place)

    def starts_over(self, broker: int, damage: Damage, put: Sequence[Copy]) -> bool:
        """Whether the repair leaves a gap below the start of the leader's log, which no listing would show."""
        if isinstance(damage, BadEpoch | BadLocalStart):
            return False
        return damage.start < min([self._begin(broker), *(copy.held.start for copy in put)])

    def local_start(self, broker: int, damage: BadLocalStart, lost: Collection[int], in_place: bool) -> Repair:
        """Repair a local start register. Its content comes from the same register on another replica, or from the
        footer of a file that ends at that offset. If neither exists, a follower starts over at its leader's local
        start, provided that this start is greater than the damaged one.
        Raises: CorruptionError with the remedy, if all three are impossible.
        """
        what = f"{self._view.topic}-{self._view.partition}: the local start register on broker {broker}"
        starts = {b: look.local_start for b, look in self._looks.items()}
        same = [b for b in self._view.replicas if b not in lost and starts.get(b) == damage.offset]
        if same:
            return Repair(broker, damage, (), min(same, key=self.rank))
        ending = [copy for copy in (*self.log, *self.hidden) if copy.held.end == damage.offset]
        if ending:
            return Repair(broker, damage, (), state_of=min(ending, key=lambda copy: self.rank(copy.place)))
        if self._begin(broker) > damage.offset:
            return Repair(broker, damage, (), starts_over=True)
        if not in_place:
            remedy = "reassign the replica to another broker, or move it away and back"
        elif broker in self._looks and self._looks[broker].end > damage.offset:
            remedy = (
                "this broker is the only member of the ISR: wait until retention advances the start; "
                "the later files are intact"
            )
        else:
            remedy = (
                "this broker is the only member of the ISR, and its log is empty: restore the file from a backup"
            )
        raise CorruptionError(f"{what}, {damage.offset}, is damaged, and no file ends there: {remedy}")

    def _begin(self, broker: int) -> int:
        """The start of the leader's log, below which a follower needs no records."""
        if broker == self._leader or self._leader not in self._looks:
            return 0
        return self._looks[self._leader].local_start

    def register_of(self, broker: int, damage: Damage, unread: Collection[int]) -> int | None:
        """A broker that has the register which a leader, repaired in place, has lost. All registers of an epoch
        are equal. Raises: CorruptionError if no broker has the register.
        """
        if not isinstance(damage, BadEpoch) or not damage.needed or broker != self._leader:
            return None
        own = max(damage.epoch, self._looks[broker].joined_epoch if broker in self._looks else 0)
        joined = {b: look.joined_epoch for b, look in self._looks.items() if b not in unread}
        fit = [b for b in self._view.replicas if damage.epoch <= joined.get(b, -1) <= own]
        # a replica that has joined no later epoch certainly has the register; in any other replica, a later
        # register replaces it
        if fit:
            return min(fit, key=joined.__getitem__)
        having = [b for b in self._view.replicas if b in joined and damage.epoch in self._looks[b].epochs]
        if having:  # a replica that joined an epoch which this leader never joined, and that kept the register
            return having[0]
        raise CorruptionError(
            f"{self._view.topic}-{self._view.partition}: the register of epoch {damage.epoch} on broker {broker} "
            "is damaged or missing. This broker is the leader, and no other replica has joined "
            "that epoch: restore the register from a backup"
        )

    def _cover(
        self, broker: int, start: int, end: int, name: DataName | None, in_place: bool
    ) -> tuple[list[Copy], list[Offsets]]:
        local_start = self._looks[broker].local_start if broker in self._looks else 0
        live = [c for c in (*self.log, *self.hidden) if c.held.name.merged or c.held.start >= local_start]
        own = {copy.held.name for copy in self.hidden if copy.place == broker} - {name}
        candidates = [c for c in live if c.place != broker and self._may(c, name, in_place)]
        candidates += [copy for copy in live if copy.place == broker and copy.held.name in own]

        def preference(copy: Copy) -> tuple[bool, bool, bool, int, int]:
            """The order of preference: first copies of the same file, then files that follow the last compaction,
            then files that the replica already has.
            """
            same, own = copy.held.name == name, copy.place == broker
            return not same, not self.is_compacted(copy), not own, self.rank(copy.place), -copy.held.end

        found, holes = cover(candidates, start, end, preference)
        return [copy for copy in found if copy.place != broker], holes

    def _may(self, copy: Copy, name: DataName | None, in_place: bool) -> bool:
        """Whether a copy may be used. The last member of an ISR gets only the identical file or committed records.
        Records are committed if they come from the remote tier, or are below the high watermark of the replica
        with the copy.
        """
        if not in_place or name is None or copy.place is None or copy.held.name == name:
            return True
        return copy.place in self._looks and copy.held.end <= self._looks[copy.place].high_watermark
