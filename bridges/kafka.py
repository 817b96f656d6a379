"""The methods of ``Cluster`` for Kafka: ``mirror``, ``compare``, ``export``, ``serve`` and others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from stratalog.bridges.export import export as exporting
from stratalog.bridges.export.kafka_target import open_target
from stratalog.bridges.export.options import ExportOptions
from stratalog.bridges.formats.decoder import Decoded
from stratalog.bridges.formats.opening import typed_values
from stratalog.bridges.formats.registry import divided
from stratalog.bridges.kafka_tier.options import KafkaTierOptions
from stratalog.bridges.live.boundary import look_live
from stratalog.bridges.live.plan import plan_live
from stratalog.bridges.mirror import compare as comparing
from stratalog.bridges.mirror import mirror as mirroring
from stratalog.bridges.mirror.kafka_source import open_source
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.bridges.mirror.source import MirrorSource
from stratalog.engine.cluster.arguments import TopicNames, names, option_text, session
from stratalog.engine.cluster.groups import Groups
from stratalog.engine.cluster.recorded import operation
from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.report import Report
from stratalog.engine.reading.bounds import Bound, in_zone
from stratalog.engine.reading.client import client_metadata
from stratalog.partitions.errors import EnvironmentUnusableError, InvalidCallError
from stratalog.partitions.numbers import whole_or_none

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from stratalog.bridges.serve.endpoint import KafkaEndpoint


class Kafka:
    """The Kafka methods of an open cluster. ``bootstrap`` has the addresses of Kafka's brokers; ``configs`` has
    configs of librdkafka (``security.protocol``, ``sasl.*``, ``ssl.*``) and of a schema registry
    (``schema.registry.url``, ``schema.registry.basic.auth.user.info``). The methods need ``confluent-kafka``
    (``pip install 'stratalog[kafka]'``).
    """

    _ports: Ports
    _spark: SparkSession | None

    @operation("mirror", leaves_event=False, redacted=("configs", "tier"))
    def mirror(
        self,
        topics: TopicNames,
        bootstrap: str | None = None,
        *,
        configs: Mapping[str, str] | None = None,
        tier: KafkaTierOptions | None = None,
        replication_factor: int | None = None,
        archive: bool = False,
        rename: Mapping[str, str] | None = None,
        groups: bool = True,
        value_format: Decoded | None = None,
        schema_file: str | None = None,
        message: str | None = None,
        throttle_bytes_per_s: float | None = None,
        budget_s: float | None = None,
        dry_run: bool = False,
        check: bool = True,
    ) -> Report:
        """Mirror topics of a Kafka cluster once: copy the records since the last run to the same offsets. Any
        number of mirrors may run. If there is much new data, the executors of the cluster's session copy it.
        Values that do not match their schema are kept in ``value._undecoded`` and counted.

        With a ``tier``, the mirror reads uploaded segments from their bucket, and the rest from the brokers. If
        the mirror has to read an uploaded range from the brokers, the report names the range and the reason.

        See ``stratalog.bridges.mirror.mirror``.

            cluster.mirror(["trips"], "kafka-1:9092")

        Args:
            bootstrap: brokers of the source, comma-separated
            configs: a config of librdkafka, such as security.protocol=SASL_SSL, or schema.registry.url
            tier: read history from the source's tiered storage (KIP-405); a tier with metadata replaces the
                brokers
            replication_factor: the replication factor of created topics
            archive: keep records that the source deletes
            rename: mirror the topic SOURCE as NAME; later runs keep this name
            groups: False: do not copy the offsets of consumer groups
            value_format: decode values with the schema file (default: keep bytes)
            schema_file: for avro a schema, for json a type as DDL, for protobuf a descriptor set
            message: for protobuf: the message type of the values in the descriptor set
            dry_run: list the topics and partitions that would be created; read and append nothing

        Raises: EnvironmentUnusableError without confluent-kafka; InvalidCallError, also for a topic that is
            already mirrored under a name that differs from ``rename``; UnknownTopicOrPartitionError;
            RetriableError if the source does not answer; with a tier see ``KafkaTier.open``.
        """
        there, registry = divided(configs)
        options = MirrorOptions(
            replication_factor=whole_or_none(replication_factor, "replication_factor"),
            archive=archive,
            rename=dict(rename or {}),
            groups=groups,
            values=typed_values(value_format, schema_file, message, registry),
            throttle_bytes_per_s=throttle_bytes_per_s,
            budget_s=budget_s,
            tier=tier is not None,
            dry_run=dry_run,
        )

        with closing(self._source(bootstrap, there, tier)) as source:
            return mirroring.mirror(*self._ports.all, source, names(topics) or (), options)

    def _source(
        self, bootstrap: str | None, configs: Mapping[str, str], tier: KafkaTierOptions | None
    ) -> MirrorSource:
        """Return the source: brokers, brokers and their tier, or a tier without brokers. Raises: see
        ``mirror``.
        """
        if tier is not None and not isinstance(tier, KafkaTierOptions):
            raise InvalidCallError(f"tier is a {type(tier).__name__}: give KafkaTierOptions(address, layout)")
        if (bootstrap is None) == (tier is None or tier.metadata is None):
            raise InvalidCallError(
                "give either bootstrap (the source's brokers) or a tier with metadata, not both"
            )
        if tier is None:
            return open_source(bootstrap or "", configs)
        from stratalog.bridges.kafka_tier.mirrored import open_tiered

        return open_tiered(tier, bootstrap, configs, self._ports.metadata.image())

    @operation("mirror end")
    def end_mirror(self, topics: TopicNames, *, dry_run: bool = False, check: bool = True) -> Report:
        """End the mirroring of topics: producers may then append to the topics, and mirrors ignore the topics.

        Raises: UnknownTopicOrPartitionError; InvalidCallError for a topic that is not a mirror.
        """
        return mirroring.end_mirror(
            self._ports.metadata, self._ports.execution, names(topics) or (), dry_run=dry_run
        )

    @operation("compare", leaves_event=False, redacted=("configs", "tier"))
    def compare(
        self,
        topics: TopicNames,
        bootstrap: str | None = None,
        *,
        configs: Mapping[str, str] | None = None,
        tier: KafkaTierOptions | None = None,
        value_format: Decoded | None = None,
        schema_file: str | None = None,
        message: str | None = None,
    ) -> Report:
        """Compare every record of mirrored topics with their source in a Kafka cluster: offset, timestamp, key,
        value and headers. ``topics`` are names in the source. A partition that differs is a failure that names
        offsets. If the mirror decoded values, give the same format: decoded values are compared. The source may be
        read from its tier, as for ``mirror``. Offsets with unknown records are not compared, and notes name them.
        See ``stratalog.bridges.mirror.compare``.

            cluster.compare(["trips"], "kafka-1:9092").raise_for_failures()

        Args:
            bootstrap: brokers of the source, comma-separated
            configs: a config of librdkafka, such as security.protocol=SASL_SSL, or schema.registry.url
            tier: read from the source's tiered storage (KIP-405); a tier with metadata replaces the brokers
            value_format: decode values with the schema file (default: keep bytes)
            schema_file: for avro a schema, for json a type as DDL, for protobuf a descriptor set
            message: for protobuf: the message type of the values in the descriptor set

        Raises: see ``mirror``.
        """
        there, registry = divided(configs)
        values = typed_values(value_format, schema_file, message, registry)
        with closing(self._source(bootstrap, there, tier)) as source:
            return comparing.compare(*self._ports.all, source, names(topics) or (), values)

    def read_live(
        self,
        topic: str,
        bootstrap: str,
        start: Bound = None,
        end: Bound = None,
        *,
        configs: Mapping[str, str] | None = None,
        value_format: Decoded | None = None,
        schema_file: str | None = None,
        message: str | None = None,
        fail_on_data_loss: bool = True,
    ) -> DataFrame:
        """Read a mirrored topic and its source in Kafka as one DataFrame with the columns of ``read``. Records
        below the end of the mirrored log come from the mirror. Newer records come from Kafka, up to the last
        stable offset. The frame has each record once. This call fixes all offsets, even while a mirror runs.

        ``start`` and ``end`` are offsets, offsets by partition, or times, ``[start, end)``. ``topic`` is the name
        of the mirrored topic. Values are decoded as in ``mirror``. If Kafka deleted records before they were
        mirrored, the read fails; ``fail_on_data_loss=False`` reads the rest, with a warning.

            cluster.read_live("trips", "kafka-1:9092").groupBy("value").count()

        Raises: see ``mirror``; InvalidCallError for a topic that is not a mirror; SourceTruncatedError if an
            unclean election at the source has replaced mirrored records; OffsetOutOfRangeError.
        """
        spark = session(self._spark, "reading")
        from stratalog.bridges.live.frame import live_frame
        from stratalog.engine.spark.time_zone import session_zone

        zone = partial(session_zone, spark)
        there, registry = divided(configs)
        values = typed_values(value_format, schema_file, message, registry)
        with closing(open_source(bootstrap, there)) as source:
            live = look_live(*self._ports.for_records, source, topic, values)
            plan = plan_live(
                *self._ports.for_records,
                live,
                in_zone(start, zone),
                in_zone(end, zone),
                fail_on_data_loss=fail_on_data_loss,
            )
            return live_frame(*self._ports.for_records, spark, plan, values)

    def for_each_live_batch(
        self,
        topic: str,
        bootstrap: str,
        function: Callable[[DataFrame, int], None],
        *,
        configs: Mapping[str, str] | None = None,
        value_format: Decoded | None = None,
        schema_file: str | None = None,
        message: str | None = None,
        **options: object,
    ) -> DataStreamWriter:
        """Stream a mirrored topic and its source in Kafka. The stream begins at any offset or time of the history,
        and continues with Kafka's records automatically. ``function(frame, batch_id)`` gets each batch as a frame
        of ``read_live``. Both sides share one set of offsets in the checkpoint, so the stream can read records
        from the mirror that Kafka has deleted in the meantime. The other arguments are those of ``read_live``;
        ``options`` are those of ``for_each_batch``, except ``group`` and ``maxBytesPerTrigger``.

            writer = cluster.for_each_live_batch("trips", "kafka-1:9092", upsert, startingOffsets="earliest")
            writer.option("checkpointLocation", path).start()

        Raises: see ``read_live``; InvalidCallError naming the option.
        """
        spark = session(self._spark, "a stream's batch")
        from stratalog.bridges.live.stream import for_each_live_batch

        there, registry = divided(configs)
        values = typed_values(value_format, schema_file, message, registry)
        given = {name: option_text(value) for name, value in options.items()}
        source = open_source(bootstrap, there)
        return for_each_live_batch(self._ports, spark, topic, source, values, function, given)

    @operation("export", leaves_event=False, redacted=("configs",))
    def export(
        self,
        topics: TopicNames,
        bootstrap: str,
        *,
        configs: Mapping[str, str] | None = None,
        name: str | None = None,
        target_topic: str | None = None,
        new_offsets: bool = False,
        start: Bound = None,
        end: Bound = None,
        groups: bool = True,
        offset_map: str | None = None,
        replication_factor: int | None = None,
        throttle_bytes_per_s: float | None = None,
        pace: float | None = None,
        budget_s: float | None = None,
        dry_run: bool = False,
        check: bool = True,
    ) -> Report:
        """Export topics to a Kafka cluster once. The records since the last run of this export are written to the
        same offsets, each exactly once. An export of a range (``start``, ``end``) needs a ``name``. See
        ``stratalog.bridges.export``.

            cluster.export(["trips"], "kafka-2:9092")

        Args:
            bootstrap: brokers of the target, comma-separated
            configs: a config of librdkafka, such as security.protocol=SASL_SSL
            name: the name of the export (default: the cluster's id)
            target_topic: the topic in the target, if you export one topic (default: the same name)
            new_offsets: append at new offsets, after the records that the target topics already have
            start: an offset, offsets by partition (0:1000,3:20), a position, first-at:TIME (the first record at or
                after TIME, and all later offsets), or a time (the earliest timestamp)
            end: where to stop, exclusive, in the same forms as start (default: the last stable offset)
            groups: False: do not copy the offsets of consumer groups
            offset_map: write a Delta table that maps offsets of this cluster to offsets of the target: a folder,
                or s3://...
            replication_factor: the replication factor of created topics in the target
            pace: replay at X times the original speed (1 = real time)
            dry_run: list the offsets that would be exported; write nothing

        Raises: see ``mirror``.
        """
        options = ExportOptions(
            name=name,
            target_topic=target_topic,
            keep=not new_offsets,
            start=start,
            end=end,
            groups=groups,
            offset_map=offset_map,
            replication_factor=whole_or_none(replication_factor, "replication_factor") or -1,
            throttle_bytes_per_s=throttle_bytes_per_s,
            pace=pace,
            budget_s=budget_s,
            dry_run=dry_run,
        )
        with closing(open_target(bootstrap, configs, self._ports.clock)) as target:
            return exporting.export(*self._ports.all, target, names(topics) or (), options)

    def serve(
        self,
        listen: str = "127.0.0.1:9092",
        *,
        advertise: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        tls_client_ca: str | None = None,
        poll_s: float = 1.0,
        max_connections: int = 100,
        client_rack: str | None = None,
    ) -> KafkaEndpoint:
        """Serve all topics, read-only, to Kafka clients, from both tiers. The endpoint runs in a thread until you
        close it:

            with cluster.serve("127.0.0.1:0") as endpoint:
                print("bootstrap.servers = {}:{}".format(*endpoint.address))
                endpoint.wait()

        Without ``tls_client_ca``, anyone who can reach the address can read everything. Serving needs ``aiokafka``
        (``pip install 'stratalog[serve]'``). See ``stratalog.bridges.serve.endpoint.ServeOptions``.

        Args:
            listen: the address to bind (default: 127.0.0.1:9092); port 0 is any free port
            advertise: the address that clients connect to, if it differs from the address to bind
            tls_cert: PEM file with the certificate of this server, and with its key unless you give a separate
                file for the key
            tls_key: PEM file with the key of the certificate
            tls_client_ca: accept only clients with a certificate signed by this CA
            poll_s: how often to check for new records that clients wait for (default: 1s)
            max_connections: the maximum number of concurrent connections (default: 100)

        Raises: EnvironmentUnusableError without aiokafka; InvalidCallError, also for an address in use.
        """
        try:
            from stratalog.bridges.serve.endpoint import KafkaEndpoint, ServeOptions
        except ModuleNotFoundError as error:
            raise EnvironmentUnusableError(
                f"serving Kafka clients needs {error.name}, which is not installed: pip install 'stratalog[serve]'"
            ) from error
        options = ServeOptions(
            listen=listen,
            advertise=advertise,
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_client_ca=tls_client_ca,
            poll_s=poll_s,
            max_connections=max_connections,
        )
        client = client_metadata(self._ports.storage.file, None, client_rack)
        return KafkaEndpoint(*self._ports.all, options, client, Groups(self._ports, None).delete)
