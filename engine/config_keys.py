"""Configuration keys of topics and of the cluster, as one table: typed, validated, with Kafka's names.

``conf/reference.toml`` is written from it. What applies to a topic or the cluster is ``engine.settings``'s
business. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from partitions.errors import InvalidConfigError
from partitions.retention import UNLIMITED

AS_TOTAL = -2
"""Of local retention: the same as total retention."""

_SEVEN_DAYS_MS = 7 * 24 * 60 * 60 * 1000


class ConfigType(StrEnum):
    """How the text of a value is read."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    DOUBLE = "double"
    STRING = "string"


class Scope(StrEnum):
    """Where a key may be set. Topic keys may be set on the cluster too, as the default of its topics."""

    CLUSTER = "cluster"
    TOPIC = "topic"


Value = bool | int | float | str


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A validator: integers from ``minimum`` on."""

    minimum: int

    def __call__(self, value: Value) -> bool:
        return isinstance(value, int) and value >= self.minimum

    def __str__(self) -> str:
        return f"at least {self.minimum}"


@dataclass(frozen=True, slots=True)
class Between:
    """A validator: numbers from ``lowest`` to ``highest``, both included."""

    lowest: float
    highest: float

    def __call__(self, value: Value) -> bool:
        return isinstance(value, int | float) and self.lowest <= value <= self.highest

    def __str__(self) -> str:
        return f"from {self.lowest:g} to {self.highest:g}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """A validator: exactly these words."""

    words: tuple[str, ...]

    def __call__(self, value: Value) -> bool:
        return value in self.words

    def __str__(self) -> str:
        return "one of " + ", ".join(self.words)


@dataclass(frozen=True, slots=True)
class TrueOrFalse:
    """A validator: every boolean."""

    def __call__(self, value: Value) -> bool:
        return isinstance(value, bool)

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDef:
    """One key."""

    name: str
    type: ConfigType
    default: Value
    scope: Scope
    validator: AtLeast | Between | OneOf | TrueOrFalse
    doc: str
    unit: str | None = None

    @property
    def field_name(self) -> str:
        """The attribute of ``TopicConfig`` or ``ClusterConfig``."""
        return self.name.replace(".", "_")

    def parse(self, text: str, what: str) -> Value:
        """The typed value of ``text``; ``what`` says whose it is.

        Raises: InvalidConfigError.
        """
        value = _READERS[self.type](text.strip())
        if value is None or not self.validator(value):
            raise InvalidConfigError(f"{what}: {self.name} = {text!r} is not valid: it takes {self.validator}")
        return value

    def text(self, value: Value) -> str:
        """The canonical text of a value."""
        return str(value).lower() if isinstance(value, bool) else str(value)


def _read_boolean(text: str) -> Value | None:
    return {"true": True, "false": False}.get(text.lower())


def _read_integer(text: str) -> Value | None:
    try:
        return int(text)
    except ValueError:
        return None


def _read_double(text: str) -> Value | None:
    try:
        return float(text)
    except ValueError:
        return None


_READERS: Mapping[ConfigType, Callable[[str], Value | None]] = {
    ConfigType.BOOLEAN: _read_boolean,
    ConfigType.INTEGER: _read_integer,
    ConfigType.DOUBLE: _read_double,
    ConfigType.STRING: str,
}


def _integer(scope: Scope, name: str, default: int, minimum: int, unit: str | None, doc: str) -> ConfigDef:
    return ConfigDef(
        name=name,
        type=ConfigType.INTEGER,
        default=default,
        scope=scope,
        validator=AtLeast(minimum),
        unit=unit,
        doc=doc,
    )


def _boolean(scope: Scope, name: str, default: bool, doc: str) -> ConfigDef:
    return ConfigDef(
        name=name,
        type=ConfigType.BOOLEAN,
        default=default,
        scope=scope,
        validator=TrueOrFalse(),
        doc=doc,
    )


def _word(scope: Scope, name: str, default: str, words: tuple[str, ...], doc: str) -> ConfigDef:
    return ConfigDef(
        name=name,
        type=ConfigType.STRING,
        default=default,
        scope=scope,
        validator=OneOf(words),
        doc=doc,
    )


def _table(*definitions: ConfigDef) -> Mapping[str, ConfigDef]:
    return {definition.name: definition for definition in sorted(definitions, key=lambda d: d.name)}


TOPIC_CONFIGS = _table(
    _integer(
        Scope.TOPIC, "segment.bytes", 1024**3, 1, "bytes", "Small appends are merged into segments of this size."
    ),
    _integer(
        Scope.TOPIC,
        "segment.ms",
        _SEVEN_DAYS_MS,
        1,
        "ms",
        "A segment whose first record is older than this is sealed, whatever its size: it may be tiered.",
    ),
    _integer(
        Scope.TOPIC,
        "segment.merge.min.files",
        16,
        2,
        "files",
        "Merge once so many appends lie side by side, also when they do not fill a segment yet.",
    ),
    _integer(
        Scope.TOPIC,
        "retention.ms",
        _SEVEN_DAYS_MS,
        UNLIMITED,
        "ms",
        "Records older than this leave the log, local and remote. -1: never.",
    ),
    _integer(
        Scope.TOPIC,
        "retention.bytes",
        UNLIMITED,
        UNLIMITED,
        "bytes",
        "The oldest records leave a partition that is larger than this, local and remote. -1: never.",
    ),
    _integer(
        Scope.TOPIC,
        "local.retention.ms",
        AS_TOTAL,
        AS_TOTAL,
        "ms",
        "Tiered records older than this leave the brokers' storage. -2: as retention.ms; -1: never.",
    ),
    _integer(
        Scope.TOPIC,
        "local.retention.bytes",
        AS_TOTAL,
        AS_TOTAL,
        "bytes",
        "Tiered records leave the brokers' storage where a partition holds more than this. "
        "-2: as retention.bytes; -1: never.",
    ),
    _boolean(Scope.TOPIC, "remote.storage.enable", False, "Copy sealed segments to the remote tier."),
    _integer(
        Scope.TOPIC,
        "file.delete.delay.ms",
        60_000,
        0,
        "ms",
        "How long files that no log needs any more stay for the sake of running readers.",
    ),
    _integer(
        Scope.TOPIC,
        "min.insync.replicas",
        1,
        1,
        "replicas",
        "An append with acks=all needs an ISR of at least this size.",
    ),
    _word(
        Scope.TOPIC,
        "message.timestamp.type",
        "CreateTime",
        ("CreateTime", "LogAppendTime"),
        "Whether a record's timestamp is the producer's or the time of the append.",
    ),
    _word(
        Scope.TOPIC,
        "cleanup.policy",
        "delete",
        ("delete", "snapshot"),
        "What happens to old records: they leave the log by retention.*, or once a snapshot holds the latest "
        "record of each key (KIP-630).",
    ),
    _integer(
        Scope.TOPIC,
        "delete.retention.ms",
        24 * 60 * 60 * 1000,
        0,
        "ms",
        "Of cleanup.policy=snapshot: snapshots leave out tombstones that are older than this, by their own "
        "timestamps, when the last record is appended that the snapshot contains.",
    ),
    ConfigDef(
        name="metadata.snapshot.min.changed_records.ratio",
        type=ConfigType.DOUBLE,
        default=0.5,
        scope=Scope.TOPIC,
        validator=Between(0, 1),
        doc="A new snapshot is taken once this part of the records of the latest one has been changed or deleted; "
        "new records do not count (KIP-630). The metadata log has what is set on the cluster.",
    ),
    _integer(
        Scope.TOPIC,
        "metadata.log.max.record.bytes.between.snapshots",
        20 * 1024 * 1024,
        1,
        "bytes",
        "A new snapshot is taken once the log has so many bytes between the latest one and the high watermark "
        "(KIP-630). The metadata log has what is set on the cluster.",
    ),
    _integer(
        Scope.TOPIC,
        "metadata.log.max.snapshot.interval.ms",
        60 * 60 * 1000,
        0,
        "ms",
        "A new snapshot is taken once the latest one is so old, whatever its size, if the log has something new "
        "(KIP-876). 0: never for its age. The metadata log has what is set on the cluster.",
    ),
    _integer(
        Scope.TOPIC,
        "metadata.start.offset.lag.time.max.ms",
        _SEVEN_DAYS_MS,
        0,
        "ms",
        "The log start waits so long for live replicas that have not fetched a snapshot yet (KIP-630). The "
        "metadata log has what is set on the cluster.",
    ),
    _word(
        Scope.TOPIC,
        "compression.type",
        "zstd",
        ("zstd", "snappy", "lz4", "gzip", "uncompressed"),
        "The codec of new segments.",
    ),
    _boolean(
        Scope.TOPIC,
        "unclean.leader.election.enable",
        False,
        "Let a replica outside the ISR lead where no member of the ISR can; loses acknowledged records.",
    ),
    _integer(
        Scope.TOPIC,
        "producer.id.expiration.ms",
        _SEVEN_DAYS_MS,
        1,
        "ms",
        "Forget a producer that has not appended for so long; a retry that comes later is not recognised. "
        "Kafka forgets after a day. Here a producer is a job or a stream whose last batch is run again when "
        "it is restarted, be it after a week's outage.",
    ),
)

CLUSTER_CONFIGS = _table(
    _integer(
        Scope.CLUSTER,
        "broker.session.timeout.ms",
        9_000,
        1,
        "ms",
        "A broker whose root has not answered for so long at the start of a run is fenced. Kafka waits as long "
        "for a broker's heartbeat.",
    ),
    _boolean(
        Scope.CLUSTER,
        "follower.fetch.last.tiered.offset.enable",
        False,
        "An empty follower of a tiered topic starts at the earliest pending upload offset (KIP-1023).",
    ),
    _integer(
        Scope.CLUSTER,
        "replica.lag.time.max.ms",
        30_000,
        1,
        "ms",
        "A follower that has not caught up for so long leaves the ISR.",
    ),
    _integer(
        Scope.CLUSTER,
        "default.replication.factor",
        1,
        1,
        "replicas",
        "Of topics that are created without saying it.",
    ),
    _integer(
        Scope.CLUSTER,
        "offset.metadata.max.bytes",
        4096,
        0,
        "bytes",
        "Of the text that a committed offset carries.",
    ),
    _integer(
        Scope.CLUSTER,
        "offsets.retention.minutes",
        7 * 24 * 60,
        1,
        "minutes",
        "A group and its committed offsets are forgotten so long after its latest commit; jobs/snapshot does it.",
    ),
    _integer(
        Scope.CLUSTER,
        "offsets.topic.num.partitions",
        50,
        1,
        "partitions",
        "Of __consumer_offsets, when it is created: by the first commit of an offset.",
    ),
    _integer(
        Scope.CLUSTER,
        "offsets.topic.replication.factor",
        3,
        1,
        "replicas",
        "Of __consumer_offsets, when it is created; with fewer unfenced brokers it is not.",
    ),
    _integer(
        Scope.CLUSTER,
        "transaction.state.log.num.partitions",
        50,
        1,
        "partitions",
        "Of __transaction_state, when it is created: by the first transactional producer.",
    ),
    _integer(
        Scope.CLUSTER,
        "transaction.state.log.replication.factor",
        3,
        1,
        "replicas",
        "Of __transaction_state, when it is created; with fewer unfenced brokers it is not.",
    ),
    _integer(
        Scope.CLUSTER,
        "transaction.state.log.min.isr",
        2,
        1,
        "replicas",
        "min.insync.replicas of __transaction_state, when it is created; never more than its replicas.",
    ),
    _integer(
        Scope.CLUSTER,
        "transaction.max.timeout.ms",
        15 * 60 * 1000,
        1,
        "ms",
        "The longest timeout that a transactional producer may ask for.",
    ),
    _integer(
        Scope.CLUSTER,
        "transactional.id.expiration.ms",
        7 * 24 * 60 * 60 * 1000,
        1,
        "ms",
        "A transactional id that nobody has used for so long is forgotten; jobs/snapshot does it.",
    ),
    _integer(Scope.CLUSTER, "num.partitions", 1, 1, "partitions", "Of topics that are created without saying it."),
)


def reference_toml() -> str:
    """The content of ``conf/reference.toml``."""
    lines = [
        "# Every configuration key: where it may be set, its default, what it takes. A test holds this file",
        "# equal to the code; write it with `python -m engine.config_keys > conf/reference.toml`.",
        "# Topic keys may be set on the cluster too, as the default of its topics.",
    ]
    for definition in [*CLUSTER_CONFIGS.values(), *TOPIC_CONFIGS.values()]:
        quoted = (
            f'"{definition.default}"'
            if isinstance(definition.default, str)
            else definition.text(definition.default)
        )
        lines += ["", f'["{definition.name}"]', f'scope = "{definition.scope}"', f"default = {quoted}"]
        if definition.unit is not None:
            lines.append(f'unit = "{definition.unit}"')
        lines += [f'values = "{definition.validator}"', f'doc = "{definition.doc}"']
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(reference_toml(), end="")
