"""Topics of Kafka clusters in this one, as the door has them: ``cluster.mirror`` and its like."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from stratalog.engine.cluster.arguments import TopicNames, names
from stratalog.engine.cluster.recorded import operation
from stratalog.engine.driver.context import Context
from stratalog.engine.driver.report import Report
from stratalog.engine.formats.opening import typed_values
from stratalog.engine.formats.registry import PREFIX
from stratalog.engine.mirror import compare as comparing
from stratalog.engine.mirror import mirror as mirroring
from stratalog.engine.mirror.kafka_source import open_source
from stratalog.partitions.numbers import whole_or_none


class Mirrors:
    """An open cluster, as it takes part with Kafka. ``bootstrap`` are addresses of its brokers, ``configs`` more
    of librdkafka's (``security.protocol``, ``sasl.*``, ``ssl.*``), and those of a schema registry
    (``schema.registry.url``, ``schema.registry.basic.auth.user.info``). It takes ``confluent-kafka``
    (``pip install 'stratalog[kafka]'``).
    """

    _context: Context

    @operation("mirror", leaves_event=False, untold="configs")
    def mirror(
        self,
        bootstrap: str,
        topics: TopicNames,
        *,
        configs: Mapping[str, str] | None = None,
        replication_factor: int | None = None,
        archive: bool = False,
        groups: bool = True,
        value_format: str | None = None,
        schema_file: str | None = None,
        message: str | None = None,
        throttle: float | None = None,
        budget_s: float | None = None,
        dry_run: bool = False,
    ) -> Report:
        """Mirror topics of a Kafka cluster once: what they have got since the last run, at the same offsets, and
        what their consumer groups have committed (``groups``). Topics that are not here are made, with
        ``replication_factor``; of an ``archive`` records stay when the source's go. ``throttle``: bytes a second;
        ``budget_s``: no further piece is begun after these seconds. Any number of mirrors may run. Where much is
        new, the executors of the cluster's session read and append.

        Values are bytes, or decoded: ``value_format`` is ``avro``, ``confluent-avro``, ``json`` or ``protobuf``,
        and ``schema_file`` one of Avro; with a type as DDL; with descriptors, of which ``message`` is one. Bytes
        that are not of the schema are kept in ``value._undecoded``, and counted.

        See ``stratalog.engine.mirror.mirror``.

            cluster.mirror("kafka-1:9092", ["trips"]).raise_for_failures()

        Raises: EnvironmentUnusableError without confluent-kafka; InvalidCallError, UnknownTopicOrPartitionError;
            RetriableError where the source does not answer.
        """
        there, registry = _divided(configs)
        options = mirroring.MirrorOptions(
            replication_factor=whole_or_none(replication_factor, "replication_factor"),
            archive=archive,
            groups=groups,
            values=typed_values(value_format, schema_file, message, registry),
            throttle=throttle,
            budget_s=budget_s,
            dry_run=dry_run,
        )
        with closing(open_source(bootstrap, there)) as source:
            return mirroring.mirror(self._context, source, names(topics) or (), options)

    @operation("mirror end")
    def end_mirror(self, topics: TopicNames, *, dry_run: bool = False) -> Report:
        """From here on these topics are like any others: producers append to them, mirrors leave them alone.

        Raises: UnknownTopicOrPartitionError; InvalidCallError for one that is no mirror.
        """
        return mirroring.end_mirror(self._context, names(topics) or (), dry_run=dry_run)

    @operation("compare", leaves_event=False, untold="configs")
    def compare(
        self,
        bootstrap: str,
        topics: TopicNames,
        *,
        configs: Mapping[str, str] | None = None,
        value_format: str | None = None,
        schema_file: str | None = None,
        message: str | None = None,
    ) -> Report:
        """Compare every record of topics, in a Kafka cluster and here: offsets, timestamps, keys, values and
        headers. A partition that differs is a failure, which names offsets. Of typed values, what was decoded, by
        ``value_format`` and ``schema_file`` as of ``mirror``. See ``stratalog.engine.mirror.compare``.

            cluster.compare("kafka-1:9092", ["trips"]).raise_for_failures()

        Raises: as ``mirror``.
        """
        there, registry = _divided(configs)
        values = typed_values(value_format, schema_file, message, registry)
        with closing(open_source(bootstrap, there)) as source:
            return comparing.compare(self._context, source, names(topics) or (), values)


def _divided(configs: Mapping[str, str] | None) -> tuple[dict[str, str], dict[str, str]]:
    """Those of the brokers, and those of the schema registry."""
    given = configs or {}
    of_registry = {name: value for name, value in given.items() if name.startswith(PREFIX)}
    return {name: value for name, value in given.items() if name not in of_registry}, of_registry
