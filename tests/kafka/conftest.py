"""One broker for all tests of a process; one log on it, and one of the engine, for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bench.kafka_server import PINS, running_kafka
from stratalog import Cluster
from stratalog.jobs.jars import jar_folder, missing_jars
from tests.kafka.both import Both
from tests.kafka.kafka_clients import KafkaClients
from tests.kafka.kafka_log import KafkaLog
from tests.kafka.kafka_wire import KafkaWire
from tests.kafka.mirrored import new_cluster
from tests.kafka.our_log import OurLog

_SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "log.retention.check.interval.ms": "100",
    "log.cleaner.backoff.ms": "200",
    "log.initial.task.delay.ms": "0",
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "100",
    "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
}
"""Periodic work is done immediately; topics may be tiered, to a folder."""
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def kafka_jars() -> None:
    """Kafka's jars; tests that need them are skipped without them."""
    missing = missing_jars(jar_folder(), PINS)
    if missing:
        pytest.skip(f"{len(missing)} jars of Kafka are not in {jar_folder()}: `make kafka` fetches them")


@pytest.fixture(scope="session")
def kafka_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the broker, with its logs in ``data``."""
    return tmp_path_factory.mktemp("kafka")


@pytest.fixture(scope="session")
def clients(kafka_jars: None, kafka_folder: Path) -> Iterator[KafkaClients]:
    folder = kafka_folder
    settings = {**_SETTINGS, "rsm.config.dir": str(folder / "remote")}
    of_jars = ("kafka-broker", "kafka-tiers")
    with (
        running_kafka(folder, settings=settings, of_jars=of_jars) as server,
        closing(KafkaWire()) as wire,
        closing(KafkaClients(server, wire)) as made,
    ):
        yield made


@pytest.fixture
def prefix() -> str:
    """The prefix of a test's names on the broker."""
    return f"test-{next(_NUMBERS)}-"


@pytest.fixture
def kafka(clients: KafkaClients, prefix: str) -> KafkaLog:
    return KafkaLog(clients, prefix)


@pytest.fixture
def ours(tmp_path: Path) -> OurLog:
    return OurLog(tmp_path)


@pytest.fixture
def both(ours: OurLog, kafka: KafkaLog) -> Both:
    return Both(ours, kafka)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with closing(new_cluster(tmp_path)) as made:
        yield made
