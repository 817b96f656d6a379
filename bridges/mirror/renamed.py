"""Maps names of topics in the source to their names here, and wraps the source accordingly.

If a mirrored topic has a different name in the source, ``mirror.source.topic`` stores that name, even after the
mirror has ended. So each run and comparison finds the topic by its name in the source.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stratalog.bridges.mirror.source import (
    MirrorSource,
    SourceBounds,
    SourceGroups,
    SourcePart,
    SourceRange,
    SourceRead,
    SourceTopic,
)
from stratalog.engine.config.mirrored import mirrored_topic
from stratalog.engine.config.topic_config import MIRROR_SOURCE
from stratalog.engine.metadata.image import ClusterImage
from stratalog.partitions.errors import InvalidCallError, InvalidTopicError
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.paths import MAX_TOPIC_LENGTH


def names_here(
    image: ClusterImage, topics: Mapping[str, SourceTopic], rename: Mapping[str, str]
) -> dict[str, str]:
    """Return the name of each topic here, by its name in the source: from ``rename``, otherwise from a current or
    former mirror, otherwise the same name.

    Raises: InvalidCallError for a name of ``rename`` that is not among the topics, for a topic that is mirrored
    under a name that differs from ``rename``, and for two topics with the same new name.
    """
    if unknown := sorted(rename.keys() - topics.keys()):
        raise InvalidCallError(f"topic {unknown[0]!r} is renamed (--as), but is not among the topics to mirror")
    found: dict[str, str] = {}
    for name, topic in topics.items():
        present = _mirror_of(image, topic)
        wanted = rename.get(name)
        if present is not None and wanted not in (None, present) and MIRROR_SOURCE in image.topic(present).configs:
            raise InvalidCallError(
                f"topic {name!r} of the source is mirrored here as {present!r}, and would be mirrored a second "
                f"time as {wanted!r}: run again without --as, or first delete {present!r} here, or end its "
                "mirror "
                f"(stratalog mirror {present} --end)"
            )
        found[name] = wanted if wanted is not None else present or name
        if other := [one for one, here in found.items() if here == found[name] and one != name]:
            raise InvalidCallError(
                f"topics {other[0]!r} and {name!r} of the source would both be named {found[name]!r} here: give "
                "one of "
                f"them another name: --as {name}=NAME"
            )
    return found


def _mirror_of(image: ClusterImage, topic: SourceTopic) -> str | None:
    """Return the topic here that mirrors the source's topic, otherwise a topic here that formerly mirrored it
    under a different name.
    """
    found = [one for one in image.topics.values() if mirrored_topic(one.name, one.configs) == topic.name_there]
    found.sort(key=lambda one: (MIRROR_SOURCE not in one.configs, one.name))
    return found[0].name if found else None


def check_length(topic: SourceTopic) -> None:
    """Raises: InvalidTopicError for a name that is too long here."""
    if len(topic.name) > MAX_TOPIC_LENGTH:
        raise InvalidTopicError(
            f"the name of topic {topic.name!r} of the source has {len(topic.name)} characters, but here a name "
            f"has at most {MAX_TOPIC_LENGTH}: give it another name: --as {topic.name}=NAME"
        )


def renamed(topic: SourceTopic, name: str) -> SourceTopic:
    """The topic under its name here."""
    return topic if topic.name == name else replace(topic, name=name, renamed=topic.name)


def under_names_here(source: MirrorSource, names: Mapping[str, str]) -> MirrorSource:
    """The source, with topics under their names here; ``names`` maps names in the source to names here."""
    if all(there == here for there, here in names.items()):
        return source
    return RenamedSource(source, {here: there for there, here in names.items()})


@dataclass(frozen=True, slots=True)
class RenamedPart:
    """See ``stratalog.bridges.mirror.source.SourcePart``."""

    part: SourcePart
    key: TopicPartition
    """The partition under its topic's name here."""

    @property
    def start(self) -> int:
        return self.part.start

    @property
    def end(self) -> int:
        return self.part.end

    @property
    def leader_epoch(self) -> int | None:
        return self.part.leader_epoch

    def read(self) -> Iterator[SourceRead]:
        for read in self.part.read():
            yield replace(read, key=self.key)


@dataclass(frozen=True, slots=True)
class RenamedSource:
    """See ``stratalog.bridges.mirror.source.MirrorSource``."""

    source: MirrorSource
    names: Mapping[str, str]
    """Names in the source, by the names here."""

    def topics(self, names: Sequence[str]) -> dict[str, SourceTopic]:
        found = self.source.topics([self.names[name] for name in names])
        return {name: renamed(found[self.names[name]], name) for name in names}

    def bounds(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, SourceBounds]:
        found = self.source.bounds([self._there(key) for key in keys])
        return {key: found[there] for key in keys if (there := self._there(key)) in found}

    def read(self, ranges: Mapping[TopicPartition, SourceRange]) -> Generator[SourceRead, None, None]:
        here = {self._there(key): key for key in ranges}
        reads = self.source.read({there: ranges[key] for there, key in here.items()})
        try:
            for read in reads:
                yield replace(read, key=here[read.key])
        finally:
            reads.close()

    def parts(self, key: TopicPartition, wanted: SourceRange) -> Sequence[SourcePart]:
        return [RenamedPart(one, key) for one in self.source.parts(self._there(key), wanted)]

    def notes(self) -> Sequence[str]:
        return self.source.notes()

    def group_offsets(self, topics: Sequence[str]) -> SourceGroups:
        here = {self.names[name]: name for name in topics}
        found = self.source.group_offsets(list(here))
        offsets = {
            group: {(here[name], number): offset for (name, number), offset in of_group.items() if name in here}
            for group, of_group in found.offsets.items()
        }
        return SourceGroups(offsets, found.failures)

    def close(self) -> None:
        self.source.close()

    def _there(self, key: TopicPartition) -> TopicPartition:
        return self.names[key[0]], key[1]
