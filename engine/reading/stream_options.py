"""Parses the options of a stream and of a batch read. An option that Spark's Kafka source also has gets the same
name. Pure.

Spark passes options as text; names are case-insensitive. Options contain no secrets: stores take credentials from
the environment of the reading process.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from stratalog.engine.reading.bounds import ReadQuery
from stratalog.engine.reading.positions import has_no_zone, time_of
from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.isolation import Isolation, isolation_of
from stratalog.partitions.offsets import OffsetSpec
from stratalog.partitions.spelling import check_options

_PREFIX = "kafka."

_INSTEAD: Mapping[str, str] = {
    "kafka.bootstrap.servers": "use the option cluster, the path of the cluster file, which names the brokers",
    "kafka.group.id": "use the option group, the consumer group to which a stream commits its progress",
    "groupidprefix": "use the option group, the consumer group to which a stream commits its progress",
    "kafka.client.rack": "the option is client.rack",
    "kafka.isolation.level": "the option is isolation",
    "kafka.acks": "a sink waits for all in-sync replicas (acks=all)",
    "kafka.enable.idempotence": "a sink appends each batch once; name the sink with the option producer",
    "kafka.transactional.id": "a sink appends each batch once; name the sink with the option producer",
    "kafka.partitioner.class": "the topic's config partitioner determines the partition of a key",
    "kafka.compression.type": "the segments of a topic are compressed Parquet files",
    "minoffsetspertrigger": "a batch does not wait for a number of records: use a longer trigger interval",
    "maxtriggerdelay": "a batch does not wait for a number of records: use a longer trigger interval",
    "maxrecordsperpartition": "minPartitions splits a batch into smaller tasks",
    "includetimestamp": "the column timestamp is always present",
}
_OF_SECURITY = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")


def instead_of(option: str) -> str | None:
    """The substitute for an option of Spark's Kafka source or sink; None for any other option."""
    name = option.lower()
    if name in _INSTEAD:
        return _INSTEAD[name]
    if name.startswith(_OF_SECURITY):
        return "credentials come from the environment, or from the provider that the option credentials names"
    if name.startswith((_PREFIX, "kafkaconsumer.", "fetchoffset.")):
        return "no Kafka client runs here, so omit it"
    return None


Start = OffsetSpec | datetime | Mapping[TopicPartition, int | OffsetSpec | datetime]
"""The start of a stream, or a bound of a batch read: for all partitions, or per partition."""

_SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
_STARTS = ("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp")
_ENDS = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
_OF_STREAMS = ("maxRowsPerTrigger", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "group", "failOnNewFields")

_OF_SPARK = ("checkpointlocation", "queryname")
"""Options that Spark itself adds to the options of a query."""

_SPECS = {"earliest": OffsetSpec.EARLIEST, "latest": OffsetSpec.LATEST}
_BY_NUMBER = {-1: OffsetSpec.LATEST, -2: OffsetSpec.EARLIEST}
"""The numbers that mean earliest and latest in Kafka's JSON."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The topics, bounds and limits of a stream or a batch read."""

    cluster: str
    topics: Subscription
    start: Start = OffsetSpec.LATEST
    end: Start = OffsetSpec.LATEST
    """The end of a batch read; a stream has no end."""
    max_rows: int | None = None
    max_bytes: int | None = None
    min_partitions: int | None = None
    fail_without_record: bool = False
    """Whether the start fails if a partition has no record since the starting time. False: the partition starts at
    its end, and no record is missed."""
    fail_on_data_loss: bool = True
    fail_on_new_fields: bool = True
    """Whether a stream fails when a topic's type has grown by fields that the query lacks. False: the stream
    ignores these fields."""
    columns: tuple[str, ...] | None = None
    include_headers: bool = True
    group: str | None = None
    client_rack: str | None = None
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    credentials: str | None = None
    """The name of a provider; see ``load_cluster_file``."""
    cluster_key_file: str | None = None
    """The key file of the cluster on the driver; None: the key is in its environment."""


SOURCE_OPTIONS = (
    "cluster",
    "topic",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    *_ENDS,
    "maxRowsPerTrigger",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "failOnNewFields",
    "columns",
    "includeHeaders",
    "group",
    "client.rack",
    "isolation",
    "credentials",
    "clusterKeyFile",
)


def stream_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of a stream, which begins at latest by default.

    Raises: InvalidCallError naming the option.
    """
    for name in _given(given, _ENDS):
        raise InvalidCallError(
            f"the option {name} applies only to batch reads: a stream ends when its query is stopped"
        )
    return source_options(given)


def batch_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of a batch read, from earliest to latest by default (Kafka's defaults).

    Raises: InvalidCallError naming the option, including for a read that begins at latest or ends at earliest.
    """
    for name in _given(given, _OF_STREAMS):
        raise InvalidCallError(f"the option {name} applies only to streams: a batch read ends at endingOffsets")
    options = source_options(given)
    if not _given(given, _STARTS):
        options = replace(options, start=OffsetSpec.EARLIEST)
    for name, bound, nothing in (
        ("startingOffsets", options.start, OffsetSpec.LATEST),
        ("endingOffsets", options.end, OffsetSpec.EARLIEST),
    ):
        if nothing in (bound.values() if isinstance(bound, Mapping) else (bound,)):
            raise InvalidCallError(f"{name} = {nothing.name.lower()} would make a batch read empty")
    return options


def _given(given: Mapping[str, str], names: tuple[str, ...]) -> list[str]:
    lower = {name.lower() for name in given}
    return [name for name in names if name.lower() in lower]


def source_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of either kind of source, checked as far as possible without a cluster. ``maxOffsetsPerTrigger``
    is Kafka's name for ``maxRowsPerTrigger``; ``path``, the argument of ``load``, is the topic. Sizes are in
    bytes. Headers are a column unless ``includeHeaders`` is false, as in ``cluster.read`` (Kafka's default).

    Raises: InvalidCallError naming the option.
    """
    options = known(given, (*SOURCE_OPTIONS, "path"))
    rows = _one_of(options, "maxRowsPerTrigger", "maxOffsetsPerTrigger")
    topics = _subscription(options)
    return SourceOptions(
        cluster=required(options, "cluster"),
        topics=topics,
        start=_bound(options, _STARTS, topics),
        end=_bound(options, _ENDS, topics),
        max_rows=_positive(options, rows),
        max_bytes=_positive(options, "maxBytesPerTrigger"),
        min_partitions=_positive(options, "minPartitions"),
        fail_without_record=_fails_without_record(options),
        fail_on_data_loss=_boolean(options, "failOnDataLoss"),
        fail_on_new_fields=_boolean(options, "failOnNewFields"),
        columns=_columns(options.get("columns")),
        include_headers=_boolean(options, "includeHeaders"),
        group=options.get("group"),
        client_rack=options.get("client.rack"),
        isolation=isolation_of(options.get("isolation", Isolation.READ_UNCOMMITTED)),
        credentials=options.get("credentials"),
        cluster_key_file=options.get("clusterKeyFile"),
    )


def known(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """The given options under their canonical names.

    Raises: InvalidCallError for an unknown option, naming the most similar option, and for an option of Kafka's,
    naming its substitute.
    """
    by_lower = {name.lower(): name for name in names}
    found: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() in by_lower:
            found[by_lower[name.lower()]] = value
        elif (instead := instead_of(name)) is not None:
            raise InvalidCallError(f"the option {name} is Kafka's: {instead}")
        elif name.lower() not in _OF_SPARK:
            check_options([name], names)
    return found


def required(options: Mapping[str, str], name: str) -> str:
    """Raises: InvalidCallError when the option is not given."""
    value = options.get(name, "").strip()
    if not value:
        raise InvalidCallError(f'the option {name} is missing: .option("{name}", ...)')
    return value


def topic_option(options: dict[str, str]) -> dict[str, str]:
    """The options, with ``path`` (the argument of ``load`` and ``start``) renamed to ``topic``.

    Raises: InvalidCallError when both are given.
    """
    if "path" in options:
        options["topic"] = options[_one_of(options, "topic", "path")]
        del options["path"]
    return options


def _subscription(options: dict[str, str]) -> Subscription:
    """The topics that the options select. Raises: InvalidCallError unless exactly one option selects topics."""
    given = [name for name in ("topic", *_SUBSCRIPTIONS) if name in topic_option(options)]
    if len(given) != 1:
        what = "none is given" if not given else f"{' and '.join(given)} are given"
        raise InvalidCallError(
            'name the topics with load("topic"), or with exactly one of the options topic, subscribe, '
            f"subscribePattern and assign: {what}"
        )
    text = required(options, given[0])
    if given[0] == "subscribePattern":
        return Subscription(pattern=text)
    if given[0] == "assign":
        assigned = _assigned(text)
        return Subscription(tuple(assigned), assigned=assigned)
    names = tuple(name.strip() for name in text.split(",")) if given[0] == "subscribe" else (text,)
    if not all(names) or len(set(names)) < len(names):
        raise InvalidCallError(f"the option subscribe is {text!r}: give names of topics, each once, such as 'a,b'")
    return Subscription(names)


def _json_object(text: str, wrong: InvalidCallError) -> dict[str, Any]:
    """The JSON object in a text. Raises: ``wrong`` for other JSON, or an empty object."""
    try:
        data = parse_json(text)
    except ValueError:
        raise wrong from None
    if not isinstance(data, dict) or not data:
        raise wrong
    return data


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    """Parses ``{"trips": [0, 1]}``."""
    wrong = InvalidCallError(
        f"the option assign is {text!r}: give partitions by topic as JSON, such as "
        f'{{"trips": [0, 1], "rides": [0]}}'
    )
    data = _json_object(text, wrong)
    for partitions in data.values():
        if not isinstance(partitions, list) or not partitions or len({*map(str, partitions)}) < len(partitions):
            raise wrong
        if any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in partitions):
            raise wrong
    return {topic: tuple(sorted(partitions)) for topic, partitions in data.items()}


def _one_of(options: Mapping[str, str], name: str, other: str) -> str:
    if name in options and other in options:
        raise InvalidCallError(f"the options {name} and {other} are the same: give only one of them")
    return other if other in options else name


def _positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise InvalidCallError(f"the option {name} is {text!r}: give a number above 0")
    return int(text)


def _boolean(options: Mapping[str, str], name: str) -> bool:
    """The option's value; True by default."""
    text = options.get(name)
    if text is None:
        return True
    if text.strip().lower() not in ("true", "false"):
        raise InvalidCallError(f"the option {name} is {text!r}: give true or false")
    return text.strip().lower() == "true"


def _fails_without_record(options: Mapping[str, str]) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    text = options.get(name, "latest")
    if text.strip().lower() not in ("error", "latest"):
        raise InvalidCallError(f"the option {name} is {text!r}: give error or latest")
    return text.strip().lower() == "error"


def _columns(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise InvalidCallError(f"the option columns is {text!r}: give names such as 'offset, value.carrier'")
    if len(set(names)) < len(names):
        raise InvalidCallError(f"the option columns names a column twice: {text!r}")
    return names


def _bound(options: Mapping[str, str], names: tuple[str, ...], topics: Subscription) -> Start:
    """A bound of the read, from the option of ``names`` that is given; latest if no option is given."""
    given = [name for name in names if name in options]
    if len(given) > 1:
        raise InvalidCallError(f"{' and '.join(given)} are both given: give only one of them")
    if not given:
        return OffsetSpec.LATEST
    (name,) = given
    text = options[name].strip()
    if name.endswith("ingTimestamp"):
        return _time(name, text)
    if name.endswith("ingOffsets"):
        if text.lower() in _SPECS:
            return _SPECS[text.lower()]
        return {key: _BY_NUMBER.get(at, at) for key, at in _by_partition(name, text, topics, -2).items()}
    return {key: _time(name, str(at)) for key, at in _by_partition(name, text, topics, 0).items()}


def _time(name: str, text: str) -> datetime:
    """A time from milliseconds since 1970 (as in Kafka), or from text.

    Raises: InvalidCallError, including for text without a zone, because sources do not know the session's zone.
    """
    if text.removeprefix("-").isdecimal():
        try:
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=int(text))
        except (OverflowError, ValueError) as error:  # of thousands of digits, int makes a ValueError
            raise InvalidCallError(
                f"the option {name} is {text[:40]!r}, which is not between the years 1 and 9999: give "
                "milliseconds since 1970"
            ) from error
    if has_no_zone(text):
        raise InvalidCallError(
            f"the option {name} is {text!r}, without a time zone, and Spark does not pass the time zone of the "
            "session: write "
            f"{time_of(text, name).isoformat()}, with your zone, or milliseconds since 1970"
        )
    return time_of(text, f"the option {name}, milliseconds since 1970 or a time:")


def _by_partition(name: str, text: str, topics: Subscription, least: int) -> dict[TopicPartition, int]:
    """Kafka's ``{"trips": {"0": 17, "1": -2}}``; for a stream of one topic also ``{"0": 17, "1": -2}``."""
    takes = (
        'earliest, latest, or an offset for each partition as JSON, {"trips": {"0": 17, "1": -2}} (-2 for '
        "earliest, -1 for latest)"
        if name.endswith("ingOffsets")
        else 'milliseconds since 1970 for each partition as JSON, {"trips": {"0": 1370044800000}}'
    )
    wrong = InvalidCallError(f"the option {name} is {text!r}: give {takes}")
    data = _json_object(text, wrong)
    if not any(isinstance(value, dict) for value in data.values()) and len(topics.names) == 1:
        data = {topics.names[0]: data}
    found: dict[TopicPartition, int] = {}
    for topic, partitions in data.items():
        if not isinstance(partitions, dict) or not partitions:
            raise wrong
        if topics.pattern is None and topic not in topics.names:
            raise InvalidCallError(f"{name} is for topic {topic!r}, but the stream reads {topics}")
        for partition, at in partitions.items():
            if not partition.isdecimal() or isinstance(at, bool) or not isinstance(at, int) or at < least:
                raise wrong
            found[topic, int(partition)] = at
    return found


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics of a stream, selected by name (``subscribe``), by pattern (``subscribePattern``), or by partition
    (``assign``). Without ``assign`` the stream also reads partitions that a topic gets later. With a pattern, the
    stream also reads topics that match later.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None
    """Partitions by topic name, if they are assigned; ``names`` then has the keys."""

    def __str__(self) -> str:
        return ", ".join(map(repr, self.names)) if self.pattern is None else f"the pattern {self.pattern!r}"

    def topics(self, names: Collection[str], internal: Collection[str]) -> list[str]:
        """The topics to read; a pattern selects from ``names``, and never matches an internal topic.

        Raises: see ``stratalog.engine.reading.bounds.ReadQuery.chosen``.
        """
        return ReadQuery(topics=self.names, pattern=self.pattern).chosen(names, internal)

    def matches(self, topic: str) -> bool:
        """Whether the pattern matches a topic; False without a pattern."""
        return self.pattern is not None and re.fullmatch(self.pattern, topic) is not None

    def partitions(self, topic: str, count: int) -> Sequence[int]:
        """The partitions to read of a topic with ``count`` partitions; assigned partitions need not exist."""
        return range(count) if self.assigned is None else self.assigned[topic]
