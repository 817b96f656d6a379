"""Configuration keys of topics and of the cluster, as one table: typed, validated, with Kafka's names.

``conf/reference.toml`` is written from it. What applies to a topic or the cluster is ``engine.settings``'s
business. Pure.
"""

from __future__ import annotations

from engine.config_def import Between, ClassName, ConfigDef, ConfigType, Scope, boolean, integer, table, word
from partitions.retention import UNLIMITED

AS_TOTAL = -2
"""Of local retention: the same as total retention."""
AS_LOCAL = -1
"""Of the copy lag: the same as local retention."""
NO_LIMIT = 2**63 - 1
"""Of a rate: none. Kafka's default."""

_SEVEN_DAYS_MS = 7 * 24 * 60 * 60 * 1000

TOPIC_CONFIGS = table(
    integer(
        Scope.TOPIC, "segment.bytes", 1024**3, 1, "bytes", "Small appends are merged into segments of this size."
    ),
    integer(
        Scope.TOPIC,
        "segment.ms",
        _SEVEN_DAYS_MS,
        1,
        "ms",
        "A segment whose first record is older than this is sealed, whatever its size: it may be tiered.",
    ),
    integer(
        Scope.TOPIC,
        "segment.merge.min.files",
        16,
        2,
        "files",
        "Merge once so many appends lie side by side, also when they do not fill a segment yet.",
    ),
    integer(
        Scope.TOPIC,
        "retention.ms",
        _SEVEN_DAYS_MS,
        UNLIMITED,
        "ms",
        "Records older than this leave the log, local and remote. -1: never.",
    ),
    integer(
        Scope.TOPIC,
        "retention.bytes",
        UNLIMITED,
        UNLIMITED,
        "bytes",
        "The oldest records leave a partition that is larger than this, local and remote. -1: never.",
    ),
    integer(
        Scope.TOPIC,
        "local.retention.ms",
        AS_TOTAL,
        AS_TOTAL,
        "ms",
        "Tiered records older than this leave the brokers' storage. -2: as retention.ms; -1: never.",
    ),
    integer(
        Scope.TOPIC,
        "local.retention.bytes",
        AS_TOTAL,
        AS_TOTAL,
        "bytes",
        "Tiered records leave the brokers' storage where a partition holds more than this. The last file stays, "
        "also with 0, for those who read the end of the log (Kafka uploads and drops that, too). "
        "-2: as retention.bytes; -1: never.",
    ),
    boolean(Scope.TOPIC, "remote.storage.enable", False, "Copy sealed segments to the remote tier."),
    boolean(
        Scope.TOPIC,
        "remote.log.copy.disable",
        False,
        "Copy no more to the remote tier; what is there is read on, and expires (KIP-950). Local retention has to "
        "be as total.",
    ),
    boolean(
        Scope.TOPIC,
        "remote.log.delete.on.disable",
        False,
        "When remote.storage.enable is switched off, the log starts where the leader's storage does, and what is "
        "in the remote tier goes (KIP-950). It cannot be switched off otherwise.",
    ),
    integer(
        Scope.TOPIC,
        "remote.copy.lag.ms",
        0,
        AS_LOCAL,
        "ms",
        "A sealed segment is copied to the remote tier once its latest record is so old, or remote.copy.lag.bytes "
        "says so. 0: at once; -1: as local.retention.ms (KIP-1241).",
    ),
    integer(
        Scope.TOPIC,
        "remote.copy.lag.bytes",
        AS_LOCAL,
        AS_LOCAL,
        "bytes",
        "A sealed segment is copied to the remote tier once the log has so many bytes behind it, or "
        "remote.copy.lag.ms says so. 0: at once; -1: as local.retention.bytes (KIP-1241).",
    ),
    integer(
        Scope.TOPIC,
        "file.delete.delay.ms",
        60_000,
        0,
        "ms",
        "How long files that no log needs any more stay for the sake of running readers; in the remote tier it is "
        "rounded up to whole hours.",
    ),
    integer(
        Scope.TOPIC,
        "min.insync.replicas",
        1,
        1,
        "replicas",
        "An append with acks=all needs an ISR of at least this size, and below it nothing more is committed "
        "(KIP-966); of a partition with fewer replicas, all of them.",
    ),
    word(
        Scope.TOPIC,
        "message.timestamp.type",
        "CreateTime",
        ("CreateTime", "LogAppendTime"),
        "Whether a record's timestamp is the producer's or the time of the append.",
    ),
    word(
        Scope.TOPIC,
        "cleanup.policy",
        "delete",
        ("delete", "snapshot"),
        "What happens to old records: they leave the log by retention.*, or once a snapshot holds the latest "
        "record of each key (KIP-630).",
    ),
    integer(
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
    integer(
        Scope.TOPIC,
        "metadata.log.max.record.bytes.between.snapshots",
        20 * 1024 * 1024,
        1,
        "bytes",
        "A new snapshot is taken once the log has so many bytes between the latest one and the high watermark "
        "(KIP-630). The metadata log has what is set on the cluster.",
    ),
    integer(
        Scope.TOPIC,
        "metadata.log.max.snapshot.interval.ms",
        60 * 60 * 1000,
        0,
        "ms",
        "A new snapshot is taken once the latest one is so old, whatever its size, if the log has something new "
        "(KIP-876). 0: never for its age. The metadata log has what is set on the cluster.",
    ),
    integer(
        Scope.TOPIC,
        "metadata.start.offset.lag.time.max.ms",
        _SEVEN_DAYS_MS,
        0,
        "ms",
        "The log start waits so long for live replicas that have not fetched a snapshot yet (KIP-630). The "
        "metadata log has what is set on the cluster.",
    ),
    word(
        Scope.TOPIC,
        "compression.type",
        "zstd",
        ("zstd", "snappy", "lz4", "gzip", "uncompressed"),
        "The codec of new segments.",
    ),
    boolean(
        Scope.TOPIC,
        "unclean.leader.election.enable",
        False,
        "Let a replica outside the ISR lead where no member of the ISR can; loses acknowledged records.",
    ),
    boolean(
        Scope.TOPIC,
        "leader.election.thin.replica.last.enable",
        False,
        "Replicas of a tiered topic that hold less than half as much locally as another one that could lead are "
        "elected last (KIP-1023, 'Motivation'): what they lack is read from the remote tier.",
    ),
    integer(
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

CLUSTER_CONFIGS = table(
    integer(
        Scope.CLUSTER,
        "broker.session.timeout.ms",
        9_000,
        1,
        "ms",
        "A broker whose root has not answered for so long at the start of a run is fenced. Kafka waits as long "
        "for a broker's heartbeat.",
    ),
    boolean(
        Scope.CLUSTER,
        "follower.fetch.last.tiered.offset.enable",
        False,
        "An empty follower of a tiered topic starts at the earliest pending upload offset (KIP-1023).",
    ),
    boolean(
        Scope.CLUSTER,
        "follower.fetch.last.tiered.offset.always.enable",
        False,
        "With follower.fetch.last.tiered.offset.enable: an empty follower does so also where the leader still "
        "holds the whole log. Kafka copies all of it then.",
    ),
    integer(
        Scope.CLUSTER,
        "replica.lag.time.max.ms",
        30_000,
        1,
        "ms",
        "A follower that has not caught up for so long leaves the ISR.",
    ),
    ConfigDef(
        name="replica.selector.class",
        type=ConfigType.STRING,
        default="",
        scope=Scope.CLUSTER,
        validator=ClassName(),
        doc="Which replica a reader reads from (KIP-392): the leader, where nothing is set; one in the reader's "
        "rack (client.rack) by org.apache.kafka.common.replica.RackAwareReplicaSelector; or what a Python class "
        "says that every driver can import.",
    ),
    integer(
        Scope.CLUSTER,
        "default.replication.factor",
        1,
        1,
        "replicas",
        "Of topics that are created without saying it.",
    ),
    integer(
        Scope.CLUSTER,
        "offset.metadata.max.bytes",
        4096,
        0,
        "bytes",
        "Of the text that a committed offset carries.",
    ),
    integer(
        Scope.CLUSTER,
        "offsets.retention.minutes",
        7 * 24 * 60,
        1,
        "minutes",
        "A group and its committed offsets are forgotten so long after its latest commit; jobs/snapshot does it.",
    ),
    integer(
        Scope.CLUSTER,
        "offsets.topic.num.partitions",
        50,
        1,
        "partitions",
        "Of __consumer_offsets, when it is created: by the first commit of an offset.",
    ),
    integer(
        Scope.CLUSTER,
        "offsets.topic.replication.factor",
        3,
        1,
        "replicas",
        "Of __consumer_offsets, when it is created; with fewer unfenced brokers it is not.",
    ),
    integer(
        Scope.CLUSTER,
        "transaction.state.log.num.partitions",
        50,
        1,
        "partitions",
        "Of __transaction_state, when it is created: by the first transactional producer.",
    ),
    integer(
        Scope.CLUSTER,
        "transaction.state.log.replication.factor",
        3,
        1,
        "replicas",
        "Of __transaction_state, when it is created; with fewer unfenced brokers it is not.",
    ),
    integer(
        Scope.CLUSTER,
        "transaction.state.log.min.isr",
        2,
        1,
        "replicas",
        "min.insync.replicas of __transaction_state, when it is created; never more than its replicas.",
    ),
    integer(
        Scope.CLUSTER,
        "transaction.max.timeout.ms",
        15 * 60 * 1000,
        1,
        "ms",
        "The longest timeout that a transactional producer may ask for.",
    ),
    integer(Scope.CLUSTER, "num.partitions", 1, 1, "partitions", "Of topics that are created without saying it."),
    integer(
        Scope.CLUSTER,
        "remote.log.manager.task.interval.ms",
        30_000,
        1,
        "ms",
        "A partition whose segments were copied to the remote tier is due again so long afterwards.",
    ),
    integer(
        Scope.CLUSTER,
        "remote.log.manager.task.retry.backoff.ms",
        500,
        1,
        "ms",
        "A partition that could not be copied to the remote tier is due again so long after the first failure, "
        "twice as long after each further one.",
    ),
    integer(
        Scope.CLUSTER,
        "remote.log.manager.task.retry.backoff.max.ms",
        30_000,
        1,
        "ms",
        "However often a partition has failed, it is due again so soon.",
    ),
    ConfigDef(
        name="remote.log.manager.task.retry.jitter",
        type=ConfigType.DOUBLE,
        default=0.2,
        scope=Scope.CLUSTER,
        validator=Between(0, 0.5),
        doc="By this part, at random, the wait after a failure is shorter or longer.",
    ),
    integer(
        Scope.CLUSTER,
        "remote.log.manager.copy.timeout.ms",
        10 * 60 * 1000,
        1,
        "ms",
        "A copy of one segment to the remote tier that takes longer is given up, and is a failure.",
    ),
    integer(
        Scope.CLUSTER,
        "remote.log.manager.copy.max.bytes.per.second",
        NO_LIMIT,
        1,
        "bytes/s",
        "What one run copies to the remote tier, all its tasks together (KIP-956). The default is no limit.",
    ),
    integer(
        Scope.CLUSTER,
        "remote.log.manager.fetch.max.bytes.per.second",
        NO_LIMIT,
        1,
        "bytes/s",
        "What all fetches of one driver read of the remote tier together (KIP-956). The default is no limit.",
    ),
    integer(
        Scope.CLUSTER,
        "transactional.id.expiration.ms",
        7 * 24 * 60 * 60 * 1000,
        1,
        "ms",
        "A transactional id that nobody has used for so long is forgotten; jobs/snapshot does it.",
    ),
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
