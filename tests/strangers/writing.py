"""An endpoint for suites that create their topics and produce their records themselves.

``stratalog serve`` reads only. This process has the same endpoint, and answers the requests that the endpoint
lacks: Produce appends with ``cluster.append_batches``, and CreateTopics and similar requests call
``cluster.topics``. So a suite runs unchanged, and everything that it reads comes from the endpoint. Producer ids
mean nothing here: the adapter never repeats an append, and its answers contain nothing about producers.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from aiokafka.protocol import admin
from aiokafka.record import MemoryRecords

from stratalog import Cluster
from stratalog.bridges.serve import endpoint as serving
from stratalog.bridges.serve import protocol
from stratalog.bridges.serve.codes import error_code
from stratalog.bridges.serve.endpoint import KafkaEndpoint
from stratalog.bridges.serve.protocol import ApiKey, Fields, KafkaRequest, partitions_of, topics_of
from stratalog.partitions.errors import StratalogError, TopicAlreadyExistsError
from stratalog.partitions.records import physical_schema

CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = 19, 20, 37
_FRAME_BYTES = 100 * 1024 * 1024
_ALREADY_EXISTS = 36
_CLUSTER = """
[cluster]
id = "strangers"
remote = "remote"
voters = [1]

[[brokers]]
id = 1
log_dir = "b1"
"""
_SCHEMA = physical_schema()
_COLUMNS = ("timestamp", "key", "value", "headers")
_WITHOUT_MEANING = {"cleanup.policy", "max.message.bytes", "kfake.is_internal"}
"""Configs that suites set and the engine refuses."""


class Writing:
    """The answers to requests that the endpoint lacks."""

    def __init__(self, cluster: Cluster, partitions: int) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._ids = itertools.count(1)

    def produce(self, request: KafkaRequest) -> Fields:
        """Append each partition's batches; returns the offset of the first record."""
        answers = {}
        for (topic, partition), one in partitions_of(request.body).items():
            offset, error = -1, 0
            try:
                report = self._cluster.append_batches(topic, {partition: [_batch(one["messages"] or b"")]})
                report.raise_for_failures()
                offset = report.rows[0]["base_offset"]
            except StratalogError as failed:
                error = error_code(failed)
            answers[topic, partition] = {
                "error_code": error,
                "offset": offset,
                "timestamp": -1,
                "log_start_offset": 0,
                "record_errors": [],
                "error_message": None,
            }
        return {"throttle_time_ms": 0, "topics": topics_of(answers)}

    def init(self, request: KafkaRequest) -> Fields:
        """InitProducerId: any number."""
        return {"throttle_time_ms": 0, "error_code": 0, "producer_id": next(self._ids), "producer_epoch": 0}

    def create(self, body: Fields) -> Fields:
        """CreateTopics, with one replica each."""
        errors = []
        for one in body["create_topic_requests"]:
            partitions = len(one["replica_assignment"] or ()) or one["num_partitions"]
            configs = {each["config_key"]: each["config_value"] for each in one["configs"] or ()}
            create = functools.partial(self._create, one["topic"], partitions, configs)
            errors.append(self._topic_error(one["topic"], create))
        return {"throttle_time_ms": 0, "topic_errors": errors}

    def delete(self, body: Fields) -> Fields:
        """DeleteTopics."""
        errors = [
            self._topic_error(name, functools.partial(self._cluster.topics.delete, name))
            for name in body["topics"]
        ]
        return {"throttle_time_ms": 0, "topic_error_codes": errors}

    def grow(self, body: Fields) -> Fields:
        """CreatePartitions."""
        errors = [
            self._topic_error(
                one["topic"],
                functools.partial(
                    self._cluster.topics.create_partitions, one["topic"], one["new_partitions"]["count"]
                ),
            )
            for one in body["topic_partitions"]
        ]
        return {"throttle_time_ms": 0, "topic_errors": errors}

    def metadata(self, answer: Callable[[Fields], Fields]) -> Callable[[Fields], Fields]:
        """Metadata of a request that creates missing topics, as brokers with auto.create.topics.enable."""

        def with_creation(body: Fields) -> Fields:
            found = answer(body)
            missing = [one["topic"] for one in found["topics"] if one["error_code"] == 3 and one["topic"]]
            if not missing or not body.get("allow_auto_topic_creation", False):
                return found
            for name in missing:
                self._create(name, self._partitions, {})
            return answer(body)

        return with_creation

    def _create(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        count = self._partitions if partitions < 0 else partitions
        known = {key: value for key, value in configs.items() if key not in _WITHOUT_MEANING}
        self._cluster.topics.create(name, partitions=count, replication_factor=1, configs=known)

    @staticmethod
    def _topic_error(name: str, act: Callable[[], object]) -> Fields:
        error, found = 0, None
        try:
            act()
        except StratalogError as failed:
            exists = isinstance(failed, TopicAlreadyExistsError)
            error, found = _ALREADY_EXISTS if exists else error_code(failed), str(failed)
        return {"topic": name, "error_code": error, "error_message": found}


def _batch(data: bytes) -> pa.RecordBatch:
    """The records of a Produce request."""
    batches, rows = MemoryRecords(data), list[Any]()
    while (batch := batches.next_batch()) is not None:
        rows += [(one.timestamp * 1000, one.key, one.value, one.headers) for one in batch]
    columns = zip(*rows, strict=True)
    types = [_SCHEMA.field(name).type for name in _COLUMNS]
    return pa.record_batch([pa.array(c, t) for c, t in zip(columns, types, strict=True)], names=list(_COLUMNS))


def extend(endpoint: KafkaEndpoint, cluster: Cluster, partitions: int) -> None:
    """Let a running endpoint also answer the requests of writers."""
    writing = Writing(cluster, partitions)
    ours: dict[int, dict[int, Any]] = protocol.REQUESTS  # type: ignore[assignment]
    for key, name, last in (
        (CREATE_TOPICS, "CreateTopics", 3),
        (DELETE_TOPICS, "DeleteTopics", 3),
        (CREATE_PARTITIONS, "CreatePartitions", 1),
    ):
        ours[key] = {version: getattr(admin, f"{name}Request_v{version}") for version in range(last + 1)}
    ours[CREATE_TOPICS][4] = admin.CreateTopicsRequest_v3  # the same bytes, with a default for replicas (KIP-464)
    serving.MOST_REQUEST_BYTES = _FRAME_BYTES
    answers: dict[int, Callable[[KafkaRequest], Fields]] = endpoint._answers  # type: ignore[assignment]
    answers |= {
        ApiKey.PRODUCE: writing.produce,
        ApiKey.INIT_PRODUCER_ID: writing.init,
        CREATE_TOPICS: lambda request: writing.create(request.body),
        DELETE_TOPICS: lambda request: writing.delete(request.body),
        CREATE_PARTITIONS: lambda request: writing.grow(request.body),
        ApiKey.METADATA: lambda request: writing.metadata(endpoint._metadata.topics)(request.body),
    }


def main() -> None:
    """Serve an empty cluster of folders until the process ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.strangers.writing", description=__doc__)
    parser.add_argument("--port", type=int, default=9092)
    parser.add_argument("--partitions", type=int, default=4, help="of topics that are created by their first use")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stratalog-strangers-") as folder:
        Path(folder, "cluster.toml").write_text(_CLUSTER)
        for name in ("b1", "remote"):
            Path(folder, name).mkdir()
        cluster = Cluster.format(Path(folder, "cluster.toml"))
        # Java's tests expect one partition.
        cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "1"})
        cluster.topics.create("used", partitions=1)
        # Kafka creates __consumer_offsets when it is first looked up.
        cluster.groups.commit("used", {("used", 0): 0})
        with cluster.serve(f"127.0.0.1:{given.port}", poll_s=0.05, max_connections=1000) as endpoint:
            extend(endpoint, cluster, given.partitions)
            print(f"ready at {endpoint.address[1]}", flush=True)
            endpoint.wait()


if __name__ == "__main__":
    main()
