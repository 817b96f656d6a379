"""The options of a stream, by the names of Spark's Kafka source where it has them. Pure.

Spark passes options as text; names are compared without case. Nothing secret belongs into them: stores take
credentials from the environment of whoever reads them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from engine.reading.positions import time_of
from partitions.errors import InvalidCallError
from partitions.offsets import OffsetSpec
from partitions.spelling import check_options
from partitions.transactions import Isolation, isolation_of

Start = OffsetSpec | datetime | Mapping[int, int | OffsetSpec]
"""Where a new stream begins: in all partitions, or in each one."""

_OF_SPARK = ("checkpointlocation", "queryname")
"""What Spark itself puts among the options of a query."""

_SPECS = {"earliest": OffsetSpec.EARLIEST, "latest": OffsetSpec.LATEST}
_BY_NUMBER = {-1: OffsetSpec.LATEST, -2: OffsetSpec.EARLIEST}
"""Kafka's numbers of the two, in JSON."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a stream reads, and how."""

    cluster: str
    topic: str
    start: Start = OffsetSpec.LATEST
    max_rows: int | None = None
    max_bytes: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] | None = None
    group: str | None = None
    client_rack: str | None = None
    isolation: Isolation = Isolation.READ_UNCOMMITTED


SOURCE_OPTIONS = (
    "cluster",
    "topic",
    "startingOffsets",
    "startingTimestamp",
    "maxRowsPerTrigger",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "columns",
    "group",
    "client.rack",
    "isolation",
)


def source_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of a source, checked as far as that goes without a cluster. ``maxOffsetsPerTrigger`` is Kafka's
    name of ``maxRowsPerTrigger``; ``path``, what ``load`` is given, is the topic. Sizes are numbers of bytes.

    Raises: InvalidCallError naming the option.
    """
    options = known(given, (*SOURCE_OPTIONS, "path"))
    if "path" in options:
        options["topic"] = options[_one_of(options, "topic", "path")]
    rows = _one_of(options, "maxRowsPerTrigger", "maxOffsetsPerTrigger")
    topic = required(options, "topic")
    return SourceOptions(
        cluster=required(options, "cluster"),
        topic=topic,
        start=_start(options, topic),
        max_rows=_positive(options, rows),
        max_bytes=_positive(options, "maxBytesPerTrigger"),
        min_partitions=_positive(options, "minPartitions"),
        fail_on_data_loss=_boolean(options, "failOnDataLoss", otherwise=True),
        columns=_columns(options.get("columns")),
        group=options.get("group"),
        client_rack=options.get("client.rack"),
        isolation=isolation_of(options.get("isolation", Isolation.READ_UNCOMMITTED)),
    )


def known(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """The given options under the names they have here.

    Raises: InvalidCallError naming the nearest one to an unknown one.
    """
    by_lower = {name.lower(): name for name in names}
    found: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() in by_lower:
            found[by_lower[name.lower()]] = value
        elif name.lower() not in _OF_SPARK:
            check_options([name], names)
    return found


def required(options: Mapping[str, str], name: str) -> str:
    """Raises: InvalidCallError when the option is not given."""
    value = options.get(name, "").strip()
    if not value:
        raise InvalidCallError(f'the option {name} is missing: .option("{name}", ...)')
    return value


def _one_of(options: Mapping[str, str], name: str, other: str) -> str:
    if name in options and other in options:
        raise InvalidCallError(f"the options {name} and {other} are the same: give one of them")
    return other if other in options else name


def _positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise InvalidCallError(f"the option {name} is {text!r}: it takes a number above 0")
    return int(text)


def _boolean(options: Mapping[str, str], name: str, *, otherwise: bool) -> bool:
    text = options.get(name)
    if text is None:
        return otherwise
    if text.strip().lower() not in ("true", "false"):
        raise InvalidCallError(f"the option {name} is {text!r}: it takes true or false")
    return text.strip().lower() == "true"


def _columns(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise InvalidCallError(f"the option columns is {text!r}: it takes names, as in 'offset, value.carrier'")
    if len(set(names)) < len(names):
        raise InvalidCallError(f"the option columns names a column twice: {text!r}")
    return names


def _start(options: Mapping[str, str], topic: str) -> Start:
    offsets, timestamp = options.get("startingOffsets"), options.get("startingTimestamp")
    if offsets is not None and timestamp is not None:
        raise InvalidCallError("startingOffsets and startingTimestamp are both given: give one of them")
    if timestamp is not None:
        return _time(timestamp.strip())
    if offsets is None:
        return OffsetSpec.LATEST
    text = offsets.strip()
    if text.lower() in _SPECS:
        return _SPECS[text.lower()]
    return _by_partition(text, topic)


def _time(text: str) -> datetime:
    """Milliseconds since 1970 (Kafka's way), or a time as it is written everywhere."""
    if text.lstrip("-").isdecimal():
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=int(text))
    return time_of(text, "the option startingTimestamp, milliseconds since 1970 or a time:")


def _by_partition(text: str, topic: str) -> dict[int, int | OffsetSpec]:
    """``{"0": 17, "1": -2}``, or Kafka's ``{"trips": {"0": 17, "1": -2}}``."""
    wrong = InvalidCallError(
        f"the option startingOffsets is {text!r}: it takes earliest, latest, or an offset for each partition as "
        'JSON, {"0": 17, "1": -2} (-2 for earliest, -1 for latest)'
    )
    try:
        data = json.loads(text)
    except ValueError:
        raise wrong from None
    if isinstance(data, dict) and len(data) == 1 and isinstance(next(iter(data.values())), dict):
        name, data = next(iter(data.items()))
        if name != topic:
            raise InvalidCallError(f"startingOffsets is for topic {name!r}, the stream reads {topic!r}")
    if not isinstance(data, dict) or not data:
        raise wrong
    found: dict[int, int | OffsetSpec] = {}
    for partition, offset in data.items():
        if not partition.isdecimal() or isinstance(offset, bool) or not isinstance(offset, int) or offset < -2:
            raise wrong
        found[int(partition)] = _BY_NUMBER.get(offset, offset)
    return found
