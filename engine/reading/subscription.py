"""Which topics a stream reads, and which partitions of them: Kafka's three ways to say so. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from stratalog.engine.reading.bounds import ReadQuery


@dataclass(frozen=True, slots=True)
class Subscription:
    """Topics by name (``subscribe``), by a pattern (``subscribePattern``), or some partitions of them
    (``assign``). Of a topic as a whole, the partitions that it gets later are read, too; so are topics that come
    to match.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None
    """By name; then ``names`` are its keys."""

    def __str__(self) -> str:
        return ", ".join(map(repr, self.names)) if self.pattern is None else f"the pattern {self.pattern!r}"

    def topics(self, names: Collection[str], internal: Collection[str]) -> list[str]:
        """The topics that are read; a pattern chooses among ``names``, and matches no internal one.

        Raises: as ``stratalog.engine.reading.bounds.ReadQuery.chosen``.
        """
        return ReadQuery(topics=self.names, pattern=self.pattern).chosen(names, internal)

    def matches(self, topic: str) -> bool:
        """Whether the pattern matches a topic; False without a pattern."""
        return self.pattern is not None and re.fullmatch(self.pattern, topic) is not None

    def partitions(self, topic: str, count: int) -> Sequence[int]:
        """The partitions of a topic with ``count`` partitions that are read; assigned ones need not exist."""
        return range(count) if self.assigned is None else self.assigned[topic]
