"""The class ``Cluster``, for notebooks, jobs and tests.

``producer`` has the appends, ``client`` the reads, ``jobs`` the upkeep, ``erasing`` the erasure of records, and
``looks`` the reports on the cluster's state; ``with_bridges`` adds the methods of bridges; ``topics``,
``brokers``, ``groups``, ``transactions``, ``quorum`` and ``catalog`` are groups of methods. ``arguments`` checks
names and bounds. ``parts`` has the replaceable parts: clock, ids, storage, probes. ``recorded`` logs each
operation and writes its event. For notebooks, ``overview`` renders a cluster in a cell, and ``notebook`` shows
progress and short errors.

One shape
    A call names the topic first, then the data, then options, and returns a report or raises. Required parameters
    are positional. All others are keyword-only. A name ends in the unit of its value (``_s``, ``_ms``, ``_bytes``,
    ``_bytes_per_s``). Each idea has one word (Kafka's, Spark's or Delta's) in ``Cluster``, on the command line and
    in the docs; there are no aliases. ``if_exists`` and ``if_not_exists`` make a repeated call harmless.

One declaration
    A method's signature and the ``Args:`` of its docstring declare an operation; ``Args:`` explains the parameters
    whose names do not explain them. From these declarations, ``stratalog.jobs.declared`` makes the job's
    arguments, options and help, ``recorded`` makes the event, and ``tests.golden`` makes the page docs/api.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from stratalog.engine.admin.quorum import sign_metadata
from stratalog.engine.brokers.bring_up import plan_format
from stratalog.engine.brokers.format import format_cluster
from stratalog.engine.cluster.arguments import task_runner
from stratalog.engine.cluster.brokers import Brokers
from stratalog.engine.cluster.catalog import Catalog
from stratalog.engine.cluster.client import Client
from stratalog.engine.cluster.erasing import Erasing
from stratalog.engine.cluster.groups import Groups
from stratalog.engine.cluster.jobs import Jobs
from stratalog.engine.cluster.looks import Looks
from stratalog.engine.cluster.notebook import settle
from stratalog.engine.cluster.overview import Overview
from stratalog.engine.cluster.parts import ClusterParts
from stratalog.engine.cluster.quorum import Quorum
from stratalog.engine.cluster.recorded import Frame, checked
from stratalog.engine.cluster.topics import Topics
from stratalog.engine.cluster.transactions import Transactions
from stratalog.engine.config.cluster_file import ClusterFile, load_cluster_file
from stratalog.engine.config.key_source import KeySource, key_of_environment, read_key
from stratalog.engine.driver.execution import measured
from stratalog.engine.driver.opening import Ports, open_ports, open_stores
from stratalog.engine.driver.origin import operations_log
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.run import Measure
from stratalog.engine.driver.tasks import Progress
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.replication.replica_selector import CurrentSelector, MakeSelector, OfferedSelectors
from stratalog.engine.upkeep.replication.keep_short import keep_short
from stratalog.engine.upkeep.restoring import restore as restoring
from stratalog.partitions.errors import ClusterKeyError
from stratalog.partitions.runner import SPARK, THREADS
from stratalog.partitions.store import Store
from stratalog.partitions.store.credentials import Provider

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Cluster(Client, Jobs, Erasing, Looks):
    """A cluster of storage roots, as one driver sees it.

        cluster = Cluster.open("cluster.toml", spark)
        cluster.topics.create("trips", partitions=8)
        cluster.append("trips", df, key="id", timestamp="started_at")
        cluster.read("trips", last=100).show()

    This class has the most common methods. The other methods are in ``topics``, ``groups``, ``transactions``,
    ``brokers``, ``quorum`` and ``catalog``. Any number of drivers may use the same cluster at the same time. Every
    operation reads the current metadata. An operation that fails raises OperationFailedError with its report;
    ``check=False`` returns the report instead (``stratalog.engine.cluster.recorded``).
    """

    topics: Topics
    brokers: Brokers
    groups: Groups
    transactions: Transactions
    quorum: Quorum
    catalog: Catalog
    _parts = ClusterParts()

    def __init__(self, ports: Ports, spark: SparkSession | None = None) -> None:
        """Use ``Cluster.open``, or ``Cluster.format`` for a new cluster."""
        super().__init__(ports, spark)
        self.topics = Topics(ports)
        self.brokers = Brokers(ports)
        self.groups = Groups(ports, spark)
        self.transactions = Transactions(ports)
        self.quorum = Quorum(ports)
        self.catalog = Catalog(ports, spark)
        self._overview = Overview(ports)

    # ------------------------------------------------------------------------ open and format

    @classmethod
    def open(
        cls,
        cluster_file: str | Path,
        spark: SparkSession | None = None,
        *,
        progress: Progress | None = None,
        voters_as_logged: bool = False,
        selectors: Mapping[str, MakeSelector] | None = None,
        cluster_key: KeySource = key_of_environment,
        credentials: Provider | str | None = None,
        keeps_short: bool = True,
        runner: str = SPARK,
    ) -> Self:
        """Open the cluster that a ``cluster.toml`` describes. The file may be in a bucket.

        ``spark``: a classic or Connect session. The work runs on the executors of the session; without a session,
        it runs in threads of this process. Reads and appends of DataFrames need a session. ``runner="threads"``
        always uses threads, for executors that cannot reach the storage: the driver then fetches all rows of an
        append. ``voters_as_logged``: accept a file even if its metadata voters differ from the voters in the
        metadata log. ``selectors``: your own replica selectors by name; ``replica.selector.class`` picks one.
        ``cluster_key`` gives the key that signs the metadata (``stratalog.engine.config.key_source``); without a
        key, a signed cluster is read-only, and its signatures are not verified. ``credentials`` is a credential
        provider, or its name (``load_cluster_file``). ``keeps_short``: a thread merges small files in the logs
        that this driver appends to (``stratalog.engine.upkeep.replication.keep_short``). ``progress`` is a
        listener for the progress of operations; without a listener, a notebook shows progress in its cells, and
        shows stratalog's errors without a long traceback (``stratalog.engine.cluster.notebook``).

        Raises: InvalidCallError for errors in the file, or if the cluster was never formatted; LogDirError,
            InconsistentClusterIdError for roots of another broker or cluster; NoMajorityError.
        """
        progress = settle(progress)
        file = load_cluster_file(cluster_file, credentials)
        ports = open_ports(
            file,
            key=read_key(file.cluster_id, cluster_key),
            tasks=task_runner(spark, runner),
            progress=progress,
            clock=cls._parts.clock,
            new_id=cls._parts.new_id,
            opener=cls._parts.opener,
            prober=cls._parts.prober,
            as_logged=voters_as_logged,
        )
        ports.execution.driver_only = runner == THREADS
        ports.events = operations_log()
        ports.memory.selector = CurrentSelector(OfferedSelectors(selectors))
        if keeps_short:
            keep_short(*ports.for_records, cls._parts.opener)
        return cls(ports, spark)

    @classmethod
    def format(
        cls,
        cluster_file: str | Path,
        spark: SparkSession | None = None,
        *,
        progress: Progress | None = None,
        cluster_key: KeySource = key_of_environment,
        credentials: Provider | str | None = None,
        keeps_short: bool = True,
        runner: str = SPARK,
    ) -> Self:
        """Format the folders of a ``cluster.toml`` as a cluster: format all roots, begin the metadata log,
        register the brokers. Finished steps are skipped, so a second call completes an interrupted one. With a
        ``cluster_key``, as for ``open``, everything is signed. For ``credentials``, ``keeps_short`` and ``runner``
        see ``open``.

        Raises: see ``open``; UnsupportedStoreError for storage without exclusive create.
        """
        progress = settle(progress)
        file = load_cluster_file(cluster_file, credentials)
        ports = format_cluster(
            file,
            key=read_key(file.cluster_id, cluster_key),
            clock=cls._parts.clock,
            new_id=cls._parts.new_id,
            opener=cls._parts.opener,
            tasks=task_runner(spark, runner),
            progress=progress,
            prober=cls._parts.prober,
        )
        ports.execution.driver_only = runner == THREADS
        ports.events = operations_log()
        if keeps_short:
            keep_short(*ports.for_records, cls._parts.opener)
        return cls(ports, spark)

    @classmethod
    def plan_format(
        cls,
        cluster_file: str | Path,
        *,
        credentials: Provider | str | None = None,
    ) -> Report:
        """Plan ``format``, and write nothing. Raises: InvalidCallError."""
        file = load_cluster_file(cluster_file, credentials)
        stores = open_stores(file, cls._parts.clock, cls._parts.opener)
        return plan_format(file, stores)

    @classmethod
    @checked
    def sign(
        cls,
        cluster_file: str | Path,
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
        cluster_key: KeySource = key_of_environment,
        credentials: Provider | str | None = None,
        check: bool = True,
    ) -> Report:
        """Sign the metadata of a cluster that has no key, or whose key was lost. Signing trusts the current
        metadata log of a majority of the voters, and does not check who wrote that log. Inspect the log first with
        ``describe`` and ``verify``. See ``stratalog.engine.quorum.bootstrap``.

        Raises: ClusterKeyError without a key; see ``open``; NoMajorityError; OperationFailedError (not with
            ``check=False``).
        """
        file = load_cluster_file(cluster_file, credentials)
        key = read_key(file.cluster_id, cluster_key)
        if key is None:
            raise ClusterKeyError(
                f"cluster {file.cluster_id!r} cannot be signed without a key: set STRATALOG_CLUSTER_KEY, or pass "
                "--cluster-key-file to the job"
            )
        ports = open_ports(
            file,
            clock=cls._parts.clock,
            new_id=cls._parts.new_id,
            opener=cls._parts.opener,
            key=key.trusting_what_is_there(),
            progress=progress,
            as_logged=True,
        )
        ports.events = operations_log()
        frame = Frame(ports, "sign", {"dry_run": dry_run})
        return frame.around(lambda: sign_metadata(ports.metadata, ports.execution, dry_run=dry_run))

    @classmethod
    @checked
    def restore(
        cls,
        cluster_file: str | Path,
        former: str,
        spark: SparkSession | None = None,
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
        cluster_key: KeySource = key_of_environment,
        credentials: Provider | str | None = None,
        runner: str = SPARK,
        check: bool = True,
    ) -> Report:
        """Restore the tiered part of a cluster (topics, configs, records, leader epochs, producers) to the empty
        brokers of a ``cluster.toml``. The file names the same remote tier and a new cluster id. Afterwards the
        former cluster can no longer write to the remote tier. If a call is interrupted, repeat it.
        ``stratalog.engine.upkeep.restoring.restore`` lists what is lost. With a ``cluster_key`` (see ``open``),
        the description of the former cluster must be signed, and the restored cluster is signed too; without a key
        the description is not verified. ``runner``: see ``open``.

        Args:
            former: the id of the cluster to restore
            dry_run: read the remote tier and print the plan; change nothing

        Raises: InvalidCallError; see ``open`` and ``format``; OperationFailedError (not with ``check=False``). If
            any topic cannot be restored, nothing is changed.
        """
        file = load_cluster_file(cluster_file, credentials)
        parts, key = cls._parts, read_key(file.cluster_id, cluster_key)

        def heir() -> Ports:
            tasks = task_runner(spark, runner)
            ports = format_cluster(
                file,
                clock=parts.clock,
                new_id=parts.new_id,
                opener=parts.opener,
                tasks=tasks,
                progress=progress,
                key=key,
            )
            ports.events = operations_log()
            return ports

        def open_heir() -> Ports:
            return open_ports(file, clock=parts.clock, new_id=parts.new_id, opener=parts.opener, key=key)

        def around(ports: Ports, act: Callable[[], Report]) -> Report:
            return Frame(ports, "restore", {"former": former}, destroys=True).around(act)

        return restoring.restore(
            file, former, heir, open_heir, around, opener=parts.opener, clock=parts.clock, key=key, dry_run=dry_run
        )

    def close(self, timeout_s: float | None = 30.0) -> None:
        """Wait at most ``timeout_s`` seconds until the merges after this driver's appends are done."""
        self._ports.memory.behind_appends.wait(timeout_s)

    def using(self, spark: SparkSession, runner: str = SPARK) -> Self:
        """Return the same cluster with another session: its work runs on the executors of ``spark``, and its
        DataFrames belong to ``spark``. ``runner``: see ``open``."""
        tasks = task_runner(spark, runner)
        return type(self)(self._ports.with_tasks(tasks, driver_only=runner == THREADS), spark)

    @property
    def file(self) -> ClusterFile:
        """The cluster file, as read when the cluster was opened."""
        return self._ports.storage.file

    def measured(self) -> AbstractContextManager[Measure]:
        """Measure the time and the storage requests that the block of a ``with`` statement takes."""
        return measured(self._ports.clock, self._ports.storage.counts)

    @property
    def image(self) -> ClusterImage:
        """The current metadata, by a linearizable read."""
        return self._ports.metadata.image()

    @property
    def last_known_image(self) -> ClusterImage:
        """The metadata as this driver last read it. This metadata is available even without a majority of the
        voters, when ``image`` raises NoMajorityError. It covers the metadata log up to its ``next_offset``."""
        return self._ports.metadata.last_known.image

    @property
    def stores(self) -> Mapping[int, Store]:
        """The root of each broker."""
        return self._ports.storage.stores

    def __repr__(self) -> str:
        return f"Cluster({self._ports.storage.file.cluster_id!r}, {len(self._ports.storage.stores)} brokers)"

    def _repr_html_(self) -> str:
        return self._overview.html(f"{self!r}, of {self._ports.storage.file.path}")
