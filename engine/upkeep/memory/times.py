"""The stored state of upkeep. Pure. For each step, the state has the time when the step last began, its failures,
and the partitions for which it has no work until some time. For each partition, the state has the time when all
bytes were last read, and the damage that the last check found.

The state is only a hint: if it is lost, work is due immediately, and no entry is used for longer than
``LONGEST_MS``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from stratalog.engine.driver.report import Failure
from stratalog.engine.upkeep.memory.trouble import DAMAGE, NO_TROUBLE, Trouble, trouble_of
from stratalog.partitions.bounded import parse_json
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.numbers import Int64

K = TypeVar("K")

LONGEST_MS = 24 * 60 * 60 * 1000
"""The time after which a partition is listed again, regardless of sweeps."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A partition for which some steps have no work."""

    digest: int
    """The digest of the partition (``sweep``) when a step processed it."""
    until_ms: Mapping[str, int]
    """For each step, the time before which it has no work for this partition, unless the digest changes."""

    def updated(self, later: Settled) -> Settled:
        """Both states combined, under the later digest. Times that belong to another digest are dropped."""
        return Settled(later.digest, {**(self.until_ms if self.digest == later.digest else {}), **later.until_ms})


@dataclass(frozen=True, slots=True)
class Looked:
    found: Mapping[TopicIdPartition, Sequence[Failure]]
    """The damage of each checked partition; empty for an intact partition."""
    sound: frozenset[str]
    """The names of partitions without damage, and of topics whose partitions are all intact."""
    deep: bool
    now_ms: int
    unseen: Mapping[TopicIdPartition, Collection[str]] = field(default_factory=dict)
    """By partition, the replicas and remote logs that the check could not read, without a failure for each."""


@dataclass(frozen=True, slots=True)
class Ran:
    step: str
    """A step of ``maintain``, or the name of a job."""
    failures: Sequence[Failure]
    tried: Collection[str] | None
    """The names of the partitions and topics of the run; None: all, including items that are not topics."""
    now_ms: int


@dataclass(frozen=True, slots=True)
class Times:
    """Times in ms since the epoch."""

    steps: Mapping[str, int] = field(default_factory=dict)
    """The time when each step last began, by the step's name."""
    scrubbed: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    cut_off: frozenset[str] = frozenset()
    """The steps that began but did not finish, and so are due immediately."""
    settled: Mapping[TopicIdPartition, Settled] = field(default_factory=dict)
    failing: Mapping[str, Trouble] = field(default_factory=dict)
    """The failures of each step or job, until a later run succeeds."""
    damaged: Mapping[TopicIdPartition, Trouble] = field(default_factory=dict)
    """The damage that the last check of a partition, or of the metadata log, found and did not repair. In
    ``later`` times, ``NO_TROUBLE`` means that the check found no damage.
    """
    tables: Mapping[str, int] = field(default_factory=dict)
    """For each remote table, by topic id, a version that has no rewrite by another program."""

    def updated(self, later: Times, present: Iterable[TopicIdPartition]) -> Times:
        """These times, updated by the ``later`` times; partitions that are not in ``present`` are dropped."""
        scrubbed = {**self.scrubbed, **later.scrubbed}
        settled = dict(self.settled)
        for key, one in later.settled.items():
            settled[key] = settled[key].updated(one) if key in settled else one
        here = list(present)
        damaged = _updated(self.damaged, later.damaged)
        tables = {**self.tables, **later.tables}
        return Times(
            {**self.steps, **later.steps},
            {key: scrubbed[key] for key in here if key in scrubbed},
            (self.cut_off - later.steps.keys()) | later.cut_off,
            {key: settled[key] for key in here if key in settled},
            self.failing,
            {key: damaged[key] for key in here if key in damaged},
            {topic_id: tables[topic_id] for topic_id in tables.keys() & {key.topic_id for key in here}},
        )

    def after(self, looked: Looked, present: Iterable[TopicIdPartition]) -> Times:
        """These times after a check. If damage was found by a read of every byte, only another read of every byte
        clears the damage. Damage on a broker that was fenced or did not answer, or in a remote log that could not
        be read, is not cleared. When damage is cleared, the step failures that it caused are cleared, too.
        """
        damaged = {}
        for key, failures in looked.found.items():
            damage = [one for one in failures if one.code in DAMAGE]
            known = self.damaged.get(key, NO_TROUBLE)
            if known.deep and not looked.deep:
                continue
            unseen = {*looked.unseen.get(key, ()), *(one.item for one in failures if one.code not in DAMAGE)}
            damaged[key] = known.after_check(trouble_of(damage, looked.now_ms, deep=looked.deep), unseen)
        sound = looked.sound if looked.deep else frozenset()
        failing = {step: trouble.without_damage_of(sound) for step, trouble in self.failing.items()}
        later = self.updated(Times(damaged=damaged), present)
        return replace(
            later,
            failing={step: one for step, one in failing.items() if one.is_there},
            damaged={key: one for key, one in later.damaged.items() if one.is_there},
        )

    def ran(self, run: Ran) -> Times:
        known = self.failing.get(run.step, NO_TROUBLE)
        trouble = known.after(trouble_of(run.failures, run.now_ms), run.tried)
        others = {step: one for step, one in self.failing.items() if step != run.step}
        return replace(self, failing={**others, run.step: trouble} if trouble.is_there else others)

    def has_failed(self, step: str, subjects: Collection[str]) -> bool:
        """Whether a run of the step has failed for these partitions or topics. True if some failures are not
        listed, because unlisted failures may concern them.
        """
        known = self.failing.get(step, NO_TROUBLE)
        return known.unlisted > 0 or any(one.is_of(subjects) for one in known.listed)

    def is_settled(self, step: str, key: TopicIdPartition, digest: int, now_ms: int) -> bool:
        """Whether the step has no work for a partition with this digest; False for 0."""
        known = self.settled.get(key)
        if known is None or known.digest != digest or not digest:
            return False
        return now_ms < known.until_ms.get(step, 0) <= now_ms + LONGEST_MS


def _updated(earlier: Mapping[K, Trouble], later: Mapping[K, Trouble]) -> dict[K, Trouble]:
    again = {key: trouble.again(later[key]) for key, trouble in earlier.items() if key in later}
    return {**earlier, **later, **again}


def wait_ms(last_ms: int | None, interval_ms: int, now_ms: int) -> int:
    """The time until work is due again, given the time when it was last done; 0 if the work is due now. The work
    is also due if the stored time is in the future, because a clock was set back.
    """
    if last_ms is None or last_ms > now_ms:
        return 0
    return max(0, last_ms + interval_ms - now_ms)


VERSION = 3


class _File(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    steps: dict[str, Int64]
    scrubbed: dict[str, list[tuple[Int64, Int64]]]
    """Partitions and their times, by topic id."""
    cut_off: list[str]
    settled_steps: list[str]
    settled: dict[str, list[tuple[Int64, Int64, list[Int64]]]]
    """Partitions, digests and a time for each of ``settled_steps`` (0: none), by topic id."""
    failing: dict[str, Trouble] = {}
    damaged: dict[str, list[tuple[Int64, Trouble]]] = {}
    """Keyed by topic id."""
    tables: dict[str, Int64] = {}


def encode(times: Times) -> bytes:
    """A line of JSON."""
    scrubbed: dict[str, list[tuple[int, int]]] = {}
    for (topic_id, partition), last_ms in sorted(times.scrubbed.items()):
        scrubbed.setdefault(topic_id, []).append((partition, last_ms))
    names = sorted({step for one in times.settled.values() for step in one.until_ms})
    settled: dict[str, list[tuple[int, int, list[int]]]] = {}
    for (topic_id, partition), one in sorted(times.settled.items()):
        untils = [one.until_ms.get(step, 0) for step in names]
        settled.setdefault(topic_id, []).append((partition, one.digest, untils))
    damaged: dict[str, list[tuple[int, Trouble]]] = {}
    for (topic_id, partition), trouble in sorted(times.damaged.items()):
        if trouble.is_there:
            damaged.setdefault(topic_id, []).append((partition, trouble))
    failing = {step: trouble for step, trouble in sorted(times.failing.items()) if trouble.is_there}
    file = _File(
        VERSION,
        dict(times.steps),
        scrubbed,
        sorted(times.cut_off),
        names,
        settled,
        failing,
        damaged,
        dict(sorted(times.tables.items())),
    )
    return msgspec.json.encode(file)


def decode(line: bytes) -> Times:
    """The inverse of ``encode``. For an empty line, or a line of another version, the result has no times."""
    try:
        file = parse_json(line, _File)
    except ValueError:
        return Times()
    if file.version != VERSION:
        return Times()
    return Times(
        file.steps,
        {
            TopicIdPartition(topic_id, partition): last_ms
            for topic_id, partitions in file.scrubbed.items()
            for partition, last_ms in partitions
        },
        frozenset(file.cut_off),
        {
            TopicIdPartition(topic_id, partition): Settled(
                digest, {step: at for step, at in zip(file.settled_steps, untils, strict=False) if at}
            )
            for topic_id, partitions in file.settled.items()
            for partition, digest, untils in partitions
        },
        file.failing,
        {
            TopicIdPartition(topic_id, partition): trouble
            for topic_id, partitions in file.damaged.items()
            for partition, trouble in partitions
        },
        file.tables,
    )
