"""Requests that an endpoint must answer as a Kafka 4 broker does, and the answers of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from stratalog.bridges.serve.protocol import ApiKey
from tests.bridges.endpoint_harness import Wire

TOPIC, GROUP = "t", "g"
"""The topic has two partitions: one has three records with increasing timestamps, the other has none. The group
has committed offset 2.
"""
LIST_OFFSETS_VERSIONS = 1, 3, 4, 6, 7, 8, 9, 10, 11

Answer = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A request, the part of its answer that a test checks, and the value of that part on Kafka."""

    name: str
    key: ApiKey
    version: int
    fields: dict[str, Any]
    told: Callable[[Answer], object]
    expected: object

    def ask(self, client: Wire) -> object:
        return self.told(client.ask(self.key, self.version, **self.fields))


def cases() -> Iterator[Case]:
    for name, code in (
        *((name, 17) for name in ("a b", ".", "..", "", "ä", "a/b", "x" * 250)),
        ("nobody", 3),
        (TOPIC, 0),
    ):
        yield _metadata(name, code)
        yield _configs("topic", 2, name, None, (code, code == 0))
    for of_kind, kind, name in (("broker", 4, "77"), ("broker", 4, "x"), ("unknown", 99, "")):
        yield _configs(of_kind, kind, name, None, (42, False))
    for names, some in (([], True), (["retention.ms"], True), (["nothing"], False)):
        yield _configs("topic", 2, TOPIC, names, (0, some))
    for version in LIST_OFFSETS_VERSIONS:
        for time, since, offset in (
            (0, 1, 0),
            (1 << 62, 1, -1),
            (-1, 1, 3),
            (-2, 1, 0),
            (-3, 7, 2),
            (-4, 8, 0),
            (-5, 9, -1),
            (-6, 11, -1),
            (-7, 99, -1),
            (-(1 << 63), 99, -1),
        ):
            yield _list_offsets(version, time, (0, offset) if version >= since else (35, -1))
    for kind, protocols in (("", [("range", b"")]), ("consumer", []), ("", [])):
        fields = {
            "group": "fresh",
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "member_id": "",
            "protocol_type": kind,
            "group_protocols": [{"protocol_name": name, "protocol_metadata": data} for name, data in protocols],
        }
        text = f"join of type {kind!r} with {protocols}"
        yield Case(text, ApiKey.JOIN_GROUP, 2, fields, lambda answer: answer["error_code"], 23)
    for offset, found in ((-1, -1), (99, 99), (2, 2)):
        yield Case(f"commit of {offset}", ApiKey.OFFSET_COMMIT, 2, _commit(offset), _code_of_partition, 0)
        asked = {"consumer_group": GROUP, "topics": [{"topic": TOPIC, "partitions": [0]}]}
        yield Case(f"fetch of {found}", ApiKey.OFFSET_FETCH, 3, asked, _offset_of_partition, (0, found))
    for name, code in (("nobody", 69), (GROUP, 0), (GROUP, 69)):
        asked = {"groups_names": [name]}
        yield Case(
            f"deletion of {name}: {code}",
            ApiKey.DELETE_GROUPS,
            1,
            asked,
            lambda answer: answer["results"][0]["error_code"],
            code,
        )


def _metadata(name: str, code: int) -> Case:
    fields = {"topics": [name], "allow_auto_topic_creation": False}
    said = f"metadata of {name[:10]!r}"
    return Case(said, ApiKey.METADATA, 5, fields, lambda answer: answer["topics"][0]["error_code"], code)


def _configs(of_kind: str, kind: int, name: str, names: list[str] | None, expected: tuple[int, bool]) -> Case:
    def told(answer: Answer) -> tuple[int, bool]:
        (one,) = answer["resources"]
        return one["error_code"], bool(one["config_entries"])

    asked = [{"resource_type": kind, "resource_name": name, "config_names": names}]
    said = f"configs of {of_kind} {name[:10]!r}, {names}"
    fields = {"resources": asked, "include_synonyms": False}
    return Case(said, ApiKey.DESCRIBE_CONFIGS, 1, fields, told, expected)


def _list_offsets(version: int, time: int, expected: tuple[int, int]) -> Case:
    partition = {"partition": 0, "current_leader_epoch": -1, "timestamp": time}
    fields = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"topic": TOPIC, "partitions": [partition]}],
        "timeout_ms": 10_000,
    }
    return Case(
        f"offset {time} in {version}", ApiKey.LIST_OFFSETS, version, fields, _offset_of_partition, expected
    )


def _commit(offset: int) -> dict[str, Any]:
    return {
        "consumer_group": GROUP,
        "consumer_group_generation_id": -1,
        "consumer_id": "",
        "retention_time": -1,
        "topics": [{"topic": TOPIC, "partitions": [{"partition": 0, "offset": offset, "metadata": ""}]}],
    }


COMMITTED = Case("the commit before", ApiKey.OFFSET_COMMIT, 2, _commit(2), lambda answer: None, None)
"""The group's commit before the first case."""


def _partition(answer: Answer) -> Answer:
    found: Answer = answer["topics"][0]["partitions"][0]
    return found


def _code_of_partition(answer: Answer) -> int:
    return int(_partition(answer)["error_code"])


def _offset_of_partition(answer: Answer) -> tuple[int, int]:
    return _code_of_partition(answer), int(_partition(answer)["offset"])
