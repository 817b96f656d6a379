"""Samples: figures of each read of the cluster over time, in bounded memory. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_STEPS = 240
MOST_SERIES = 400
FIRST_STEP_MS = 10_000
DISK, SIZE, REMOTE, LAG, WAITING = "Disk used", "On brokers", "In the remote tier", "Lag", "Not tiered"
UNITS = {DISK: "ratio", SIZE: "bytes", REMOTE: "bytes", LAG: "records", WAITING: "bytes"}
Name = tuple[str, str]
"""The key of a series: a scope (empty: the cluster) and one of the titles."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one read of the cluster."""

    name: Name
    value: float


class Samples:
    """At most ``MOST_SERIES`` series of at most ``MOST_STEPS`` values each. When all steps are full, every two
    steps become one, so the series reach back to the first sample. A series for which there is no room is counted
    but not kept.
    """

    def __init__(self) -> None:
        self._from_ms: int | None = None
        self._step_ms = FIRST_STEP_MS
        self._count = 0
        self._values: dict[Name, list[float | None]] = {}
        self._left_out = 0

    def add(self, now_ms: int, figures: Iterable[Figure]) -> None:
        """Keep the figures of one read of the cluster. Only the last value in a step is kept. If the clock was set
        back before the first sample, the value goes into the latest step, so the series is kept.
        """
        if self._from_ms is None:
            self._from_ms = now_ms
        while (now_ms - self._from_ms) // self._step_ms >= MOST_STEPS:
            self._thin()
        at = max((now_ms - self._from_ms) // self._step_ms, self._count - 1, 0)
        self._count = at + 1
        left_out = 0
        for figure in figures:
            values = self._values.get(figure.name)
            if values is None:
                if len(self._values) >= MOST_SERIES:
                    left_out += 1
                    continue
                values = self._values[figure.name] = []
            values.extend([None] * (at + 1 - len(values)))
            values[at] = figure.value
        self._left_out = left_out
        for name in [name for name, values in self._values.items() if all(one is None for one in values)]:
            del self._values[name]

    def _thin(self) -> None:
        self._step_ms *= 2
        self._count = (self._count + 1) // 2
        for name, values in self._values.items():
            pairs = (values[at : at + 2] for at in range(0, len(values), 2))
            self._values[name] = [next((one for one in reversed(pair) if one is not None), None) for pair in pairs]

    def shown(self) -> dict[str, Any] | None:
        """The series as in ``activity``: ``from_ms``, ``step_ms``, and ``scopes``, with the number of series that
        are ``left_out``. None before the first sample."""
        if self._from_ms is None:
            return None
        scopes: dict[str, list[dict[str, Any]]] = {}
        for (scope, title), values in self._values.items():
            filled = [*values, *[None] * (self._count - len(values))]
            scopes.setdefault(scope, []).append(
                {"title": title, "unit": UNITS[title], "level": True, "values": filled}
            )
        return {
            "from_ms": self._from_ms,
            "step_ms": self._step_ms,
            "scopes": scopes,
            "left_out": self._left_out,
        }


def figures_of(content: Mapping[str, Any]) -> list[Figure]:
    """The figures of a page: first for the cluster, the brokers and the groups, then for the topics, largest
    first.
    """
    topics: Sequence[Mapping[str, Any]] = content["topics"]
    remote = [one["remote_bytes"] for one in topics if one["remote_bytes"] is not None]
    local = [one["local_bytes"] for one in topics]
    figures = content["figures"]
    found = [
        _figure("", SIZE, None if None in local else sum(local)),
        _figure("", REMOTE, sum(remote) if remote else None),
        _figure("", LAG, figures.get("records-lag-max")),
        _figure("", WAITING, figures.get("RemoteCopyLagBytes")),
    ]
    for one in content["brokers"]:
        found.append(_figure(f"broker {one['broker']}", DISK, one["used_ratio"]))
        found.append(_figure(f"broker {one['broker']}", SIZE, one["bytes"]))
    lags: dict[str, list[int | None]] = {}
    for one in content["groups"]:
        lags.setdefault(f"group {one['group']}", []).append(one["lag"])
    for scope, known in lags.items():
        found.append(_figure(scope, LAG, None if None in known else sum(filter(None, known))))
    found += _of_topics(topics)
    return [one for one in found if one is not None]


def _of_topics(topics: Iterable[Mapping[str, Any]]) -> Iterator[Figure | None]:
    for one in sorted(topics, key=lambda topic: (topic["internal"], -(topic["local_bytes"] or 0))):
        yield _figure(f"topic {one['name']}", SIZE, one["local_bytes"])
        yield _figure(f"topic {one['name']}", REMOTE, one["remote_bytes"])


def _figure(scope: str, title: str, value: float | None) -> Figure | None:
    return None if value is None else Figure((scope, title), value)
