"""Determines when each step of ``maintain`` is due, and for which partitions, from the intervals, earlier runs,
and one listing of all brokers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from stratalog.engine.config.cluster_config import ClusterConfig
from stratalog.engine.config.topic_config import TopicConfig
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import cluster_config_of, topic_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionImage, TopicImage
from stratalog.engine.upkeep.maintenance.sweep import Look, sweep
from stratalog.engine.upkeep.memory.kept_times import KeptTimes
from stratalog.engine.upkeep.memory.times import wait_ms
from stratalog.engine.upkeep.tiering.schedule import load_schedule
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.paths import METADATA_TOPIC
from stratalog.partitions.replica import LookMark
from stratalog.tiering.schedule import Entry


@dataclass(frozen=True, slots=True)
class _Topic:
    config: TopicConfig | None
    """None if the configs are invalid. In that case, the steps report the reason."""
    partitions: tuple[PartitionImage, ...]


class DueWork:
    def __init__(
        self, storage: Storage, clock: Clock, image: ClusterImage, kept: KeptTimes, now: Collection[str] = ()
    ) -> None:
        """``now`` has the steps that run now for all partitions, even if they are not due."""
        self._storage = storage
        self._clock = clock
        self._image = image
        self._config: ClusterConfig = cluster_config_of(image)
        self._kept = kept
        self._now = now
        self.swept: LookMark | None = None
        """The time at which the listing of all brokers began."""

    @cached_property
    def looks(self) -> dict[TopicIdPartition, Look]:
        """The listing of all brokers."""
        ends = {key: entry.remote_end for key, entry in self.entries.items()}
        self.swept = LookMark.now()
        return sweep(self._storage, self._image, ends)

    @cached_property
    def entries(self) -> dict[TopicIdPartition, Entry]:
        """The schedule of the remote log manager, if any topic is tiered."""
        if all(of.config is not None and not of.config.remote_storage_enable for of in self._topics.values()):
            return {}
        return dict(load_schedule(self._storage, self._image).schedule.entries)

    @property
    def any_copies_to_remote(self) -> bool:
        return bool(self.copied_topics)

    @property
    def copied_topics(self) -> list[TopicImage]:
        return [
            self._image.topics[topic_id]
            for topic_id, of in self._topics.items()
            if of.config is not None and of.config.copies_to_remote
        ]

    def is_now(self, step: str) -> bool:
        """Whether a step must run now, even if it is not due."""
        return step in self._now

    def wait_ms(self, step: str) -> int:
        """The time until a step is due."""
        if self.is_now(step):
            return 0
        config, times, now_ms = self._config, self._kept.present, self._clock.now_ms()
        if step in times.cut_off:
            return 0
        if step == "scrub":
            waits = [wait_ms(ms, config.scrub_interval_ms, now_ms) for ms in times.scrubbed.values()]
            return 0 if self.to_scrub() else min([*waits, self.metadata_wait_ms()])
        intervals = {
            "elect": config.leader_imbalance_check_interval_seconds * 1000,
            "merge": config.log_retention_check_interval_ms,
            "compact": config.log_retention_check_interval_ms,
            "retain": config.log_retention_check_interval_ms,
            "snapshot": config.log_retention_check_interval_ms,
            "vacuum": config.vacuum_interval_ms,
        }
        return wait_ms(times.steps.get(step), intervals[step], now_ms) if step in intervals else 0

    def partitions(self, step: str) -> list[TopicIdPartition]:
        """The partitions for which a step may have work, the most urgent first."""
        times, now_ms = self._kept.present, self._clock.now_ms()
        due = [
            key
            for topic_id, of in self._topics.items()
            if _takes_part(step, of.config)
            for partition in of.partitions
            for key in (TopicIdPartition(topic_id, partition.partition),)
            if self.is_now(step)
            or not times.is_settled(step, key, self.looks[key].digest, now_ms)
            or times.has_failed(step, (self.name_of(key), self._image.topics[topic_id].name))
        ]
        self._storage.rng.shuffle(due)
        return sorted(due, key=lambda key: self._urgency(step, key))

    def name_of(self, key: TopicIdPartition) -> str:
        return f"{self._image.topics[key.topic_id].name}-{key.partition}"

    def elected_topics(self) -> int:
        """The number of topics in which a partition may need another leader. These include topics whose preferred
        leaders depend on the replicas' files.
        """
        return sum(self._by_files(of) or self._is_misled(of) for of in self._topics.values())

    def needs_key(self, step: str) -> bool:
        """Whether a step that runs now certainly writes signed data: an election, or the cluster's description in
        the remote tier. Other steps may find nothing to change.
        """
        if step == "elect":
            return any(not self._by_files(of) and self._is_misled(of) for of in self._topics.values())
        return step == "tier" and self.any_copies_to_remote

    def to_scrub(self) -> list[TopicIdPartition]:
        """The partitions whose bytes are due to be read; those whose last read was longest ago come first. If the
        step must run now, all partitions are due, and partitions with known damage come first.
        """
        times, now_ms = self._kept.present, self._clock.now_ms()
        last, at_once = times.scrubbed, self.is_now("scrub")
        interval_ms = 0 if at_once else self._config.scrub_interval_ms
        keys = [view.key for topic in self._image.topics.values() for view in self._image.views(topic.name)]
        due = sorted(
            (key for key in keys if wait_ms(last.get(key), interval_ms, now_ms) == 0),
            key=lambda key: (last.get(key, 0), key),
        )
        damaged = (
            [key for key, one in times.damaged.items() if one.is_there and key in set(due)] if at_once else []
        )
        return list(dict.fromkeys([*damaged, *due]))

    def metadata_wait_ms(self) -> int:
        """The time until the bytes of the metadata log must be read again."""
        last_ms = self._kept.present.steps.get(METADATA_TOPIC)
        return wait_ms(last_ms, self._config.scrub_interval_ms, self._clock.now_ms())

    @cached_property
    def _topics(self) -> dict[str, _Topic]:
        found: dict[str, _Topic] = {}
        for topic_id, topic in self._image.topics.items():
            try:
                config = topic_config_of(self._image, topic)
            except StratalogError:
                config = None
            found[topic_id] = _Topic(config, topic.partitions)
        return found

    def _urgency(self, step: str, key: TopicIdPartition) -> int:
        """The sort key of a partition; the smallest key is the most urgent."""
        match step:
            case "replicate":
                of = self._topics[key.topic_id]
                partition = of.partitions[key.partition]
                least = 1 if of.config is None else of.config.min_insync_replicas
                few = len(partition.isr) < min(least, len(partition.replicas))
                return 0 if few else 1 if len(partition.isr) < len(partition.replicas) else 2
            case "tier":
                entry = self.entries.get(key)
                return 0 if entry is None else entry.due_ms
            case _:
                return -self.looks[key].files

    @staticmethod
    def _by_files(of: _Topic) -> bool:
        """Whether the preferred leader depends on the replicas' files. True if the configs are unknown."""
        config = of.config
        return config is None or (
            config.remote_storage_enable and config.leader_election_short_local_log_last_enable
        )

    def _is_misled(self, of: _Topic) -> bool:
        """Whether a partition's preferred replica could lead, but does not."""
        brokers = self._image.brokers
        return any(
            one.leader != one.replicas[0] and one.replicas[0] in one.isr and not brokers[one.replicas[0]].fenced
            for one in of.partitions
        )


def _takes_part(step: str, config: TopicConfig | None) -> bool:
    """Whether a step applies to the partitions of a topic with these configs."""
    if config is None:
        return step != "compact"
    match step:
        case "tier":
            return config.copies_to_remote
        case "snapshot":
            return config.snapshots
        case "compact":
            return config.compacts
    return True
