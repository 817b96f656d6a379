"""One broker for all tests of a process; a log on it, and one of ours, for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from jobs.benchmarks.kafka_server import PINS, running_kafka
from jobs.jars import jar_folder, missing_jars
from tests.kafka.both import Both
from tests.kafka.kafka_clients import KafkaClients
from tests.kafka.kafka_log import KafkaLog
from tests.kafka.our_log import OurLog

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaClients]:
    missing = missing_jars(jar_folder(), PINS)
    if missing:
        pytest.skip(f"{len(missing)} jars of Kafka are not in {jar_folder()}: `make kafka` fetches them")
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
    folder = tmp_path_factory.mktemp("kafka")
    with running_kafka(folder, settings=settings) as server, closing(KafkaClients(server)) as made:
        yield made


@pytest.fixture
def prefix() -> str:
    """What the names of a test begin with on the broker."""
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
