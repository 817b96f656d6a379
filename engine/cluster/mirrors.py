"""Topics of Kafka clusters in this one, and of this one for clients of Kafka, as the door has them:
``cluster.mirror``, ``cluster.serve`` and their like."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from stratalog.engine.cluster.arguments import TopicNames, names
from stratalog.engine.cluster.recorded import operation
from stratalog.engine.driver.context import Context
from stratalog.engine.driver.report import Report
from stratalog.engine.mirror import compare as comparing
from stratalog.engine.mirror import mirror as mirroring
from stratalog.engine.mirror.kafka_source import open_source
from stratalog.engine.reading.client import client_metadata
from stratalog.partitions.errors import EnvironmentUnusableError
from stratalog.partitions.numbers import whole_or_none

if TYPE_CHECKING:
    from stratalog.engine.serve.endpoint import KafkaEndpoint


class Mirrors:
    """An open cluster, as it takes part with Kafka. ``bootstrap`` are addresses of its brokers, ``configs`` more
    of librdkafka's (``security.protocol``, ``sasl.*``, ``ssl.*``). It takes ``confluent-kafka``
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
        throttle: float | None = None,
        budget_s: float | None = None,
        dry_run: bool = False,
    ) -> Report:
        """Mirror topics of a Kafka cluster once: what they have got since the last run, at the same offsets, and
        what their consumer groups have committed (``groups``). Topics that are not here are made, with
        ``replication_factor``; of an ``archive`` records stay when the source's go. ``throttle``: bytes a second;
        ``budget_s``: no further piece is begun after these seconds. Any number of mirrors may run.
        See ``stratalog.engine.mirror.mirror``.

            cluster.mirror("kafka-1:9092", ["trips"]).raise_for_failures()

        Raises: EnvironmentUnusableError without confluent-kafka; InvalidCallError, UnknownTopicOrPartitionError;
            RetriableError where the source does not answer.
        """
        options = mirroring.MirrorOptions(
            replication_factor=whole_or_none(replication_factor, "replication_factor"),
            archive=archive,
            groups=groups,
            throttle=throttle,
            budget_s=budget_s,
            dry_run=dry_run,
        )
        with closing(open_source(bootstrap, configs)) as source:
            return mirroring.mirror(self._context, source, names(topics) or (), options)

    @operation("mirror end")
    def end_mirror(self, topics: TopicNames, *, dry_run: bool = False) -> Report:
        """From here on these topics are like any others: producers append to them, mirrors leave them alone.

        Raises: UnknownTopicOrPartitionError; InvalidCallError for one that is no mirror.
        """
        return mirroring.end_mirror(self._context, names(topics) or (), dry_run=dry_run)

    @operation("compare", leaves_event=False, untold="configs")
    def compare(self, bootstrap: str, topics: TopicNames, *, configs: Mapping[str, str] | None = None) -> Report:
        """Compare every record of topics, in a Kafka cluster and here: offsets, timestamps, keys, values and
        headers. A partition that differs is a failure, which names offsets. See
        ``stratalog.engine.mirror.compare``.

            cluster.compare("kafka-1:9092", ["trips"]).raise_for_failures()

        Raises: as ``mirror``.
        """
        with closing(open_source(bootstrap, configs)) as source:
            return comparing.compare(self._context, source, names(topics) or ())

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
        """Serve all topics to clients of Kafka, which read them from either tier by Kafka's protocol, and write no
        records. It runs in a thread until it is closed:

            with cluster.serve("127.0.0.1:0") as endpoint:
                print("bootstrap.servers = {}:{}".format(*endpoint.address))
                endpoint.wait()

        Without ``tls_client_ca`` all who reach the address can read everything. It takes ``aiokafka``
        (``pip install 'stratalog[serve]'``). See ``stratalog.engine.serve.endpoint.ServeOptions``.

        Raises: EnvironmentUnusableError without aiokafka; InvalidCallError, also for an address that is taken.
        """
        try:
            from stratalog.engine.serve.endpoint import KafkaEndpoint, ServeOptions
        except ModuleNotFoundError as error:
            raise EnvironmentUnusableError(
                f"clients of Kafka are served by {error.name}, which is not installed: "
                "pip install 'stratalog[serve]'"
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
        return KafkaEndpoint(self._context, options, client_metadata(self._context.file, None, client_rack))
