"""``cluster.serve`` at the level of Kafka's protocol: every version, error codes, waits, and hostile clients."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stratalog.bridges.serve.codes import ErrorCode
from stratalog.bridges.serve.endpoint import MOST_REQUEST_BYTES
from stratalog.bridges.serve.fetching import MOST_BYTES
from stratalog.bridges.serve.protocol import REQUESTS, ApiKey
from tests.bridges.endpoint_harness import Wire, served, wire
from tests.bridges.serve_requests import (
    EARLIEST,
    LATEST,
    LONG_MS,
    NO_SESSION,
    OK,
    OUT_OF_RANGE,
    REQUESTED,
    UNKNOWN_MEMBER,
    UNKNOWN_TOPIC,
    UNSUPPORTED,
    asked,
    fetch,
    parts,
    requested,
    values,
)
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster, live_and_shared


def built(folder: Path) -> LiveCluster:
    """Topic ``t``, with three records in one of its two partitions; and a group."""
    live = LiveCluster(folder)
    live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    live.topic(partitions=2)
    live.append(["a", "b", "c"]).raise_for_failures()
    live.cluster.groups.commit("g", {("t", 0): 2})
    return live


live, shared = live_and_shared(built)


@pytest.mark.parametrize("key", REQUESTS)
def test_every_version_is_answered_the_same(key: int, live: LiveCluster) -> None:
    with served(live.cluster) as address, wire(address) as client:
        answers = {version: client.ask(key, version, **requested(key, version)) for version in REQUESTS[key]}
    of_all = answers[max(answers)]
    for version, answer in answers.items():
        common = answer.keys() & of_all.keys() - {"topics", "brokers", "resources"}
        assert {name: answer[name] for name in common} == {name: of_all[name] for name in common}, version
        if key == ApiKey.DESCRIBE_CONFIGS:
            (entries,), (newest,) = ([one["config_entries"] for one in a["resources"]] for a in (answer, of_all))
            assert [{name: one[name] for name in entries[0]} for one in newest] == entries
        if key == ApiKey.FETCH:
            assert [values(one) for one in parts(answer)] == [[(0, b"a"), (1, b"b"), (2, b"c")]]
        if key == ApiKey.METADATA:
            assert [(one["topic"], one["error_code"], len(one["partitions"])) for one in answer["topics"]] == [
                ("t", OK, 2)
            ]
        if key == ApiKey.LIST_OFFSETS:
            assert [one["offset"] for one in parts(answer)] == [3]
        if key == ApiKey.OFFSET_FETCH:
            assert [(one["offset"], one["error_code"]) for one in parts(answer)] == [(2, OK)]
        if REQUESTED[key].get("member_id") == "nobody":
            assert answer["error_code"] == UNKNOWN_MEMBER
        if key == ApiKey.PRODUCE:
            assert [one["error_code"] for one in parts(answer)] == [29]
        if key == ApiKey.INIT_PRODUCER_ID:
            assert answer["error_code"] == 31
        if key == ApiKey.CONSUMER_GROUP_HEARTBEAT:
            assert answer["error_code"] == UNSUPPORTED
            assert "group.protocol=classic" in answer["error_message"]


def test_topics_have_their_ids(live: LiveCluster) -> None:
    """Topics can be found by their ids (KIP-516)."""
    topic_id = live.cluster.image.topic_ids["t"]
    with served(live.cluster) as address, wire(address) as client:

        def found(**one: Any) -> dict[str, Any]:
            (topic,) = client.ask(ApiKey.METADATA, 12, **{**requested(ApiKey.METADATA, 12), "topics": [one]})[
                "topics"
            ]
            return topic

        by_name, by_id = found(**asked(topic="t")), found(**asked(topic_id=topic_id))
        nobody = found(**asked(topic_id="f" * 32))
    assert by_name == by_id
    assert {name: by_id[name] for name in asked()} == asked(topic="t", topic_id=topic_id)
    assert (nobody["error_code"], nobody["topic"]) == (100, None)
    assert {name: nobody[name] for name in asked()} == asked(topic_id="f" * 32)


def test_a_client_of_a_future_version_learns_the_versions(shared: LiveCluster) -> None:
    with served(shared.cluster) as address, wire(address) as client:
        client.send(
            (ApiKey.API_VERSIONS).to_bytes(2, "big")
            + (4).to_bytes(2, "big")
            + (7).to_bytes(4, "big")
            + b"\xff\xff"
        )
        answer = client.answer(REQUESTS[ApiKey.API_VERSIONS][0].RESPONSE_TYPE.SCHEMA)
        assert answer["error_code"] == UNSUPPORTED
        known = {one["api_key"]: (one["min_version"], one["max_version"]) for one in answer["api_versions"]}
        assert known == {key: (min(versions), max(versions)) for key, versions in REQUESTS.items()}
        assert client.ask(ApiKey.API_VERSIONS, 0) == {**answer, "error_code": OK}


@pytest.mark.parametrize("version", [3, 4])
def test_configs_have_types_and_the_documentation_that_is_asked_for(version: int, shared: LiveCluster) -> None:
    names = ["remote.storage.enable", "segment.bytes", "compression.type"]
    resource = {"resource_type": 2, "resource_name": "t", "config_names": names}
    with served(shared.cluster) as address, wire(address) as client:
        for seen in (False, True):
            asked = {"resources": [resource], "include_synonyms": False, "include_documentation": seen}
            (answer,) = client.ask(ApiKey.DESCRIBE_CONFIGS, version, **asked)["resources"]
            found = {one["config_names"]: one for one in answer["config_entries"]}
            assert [found[name]["config_type"] for name in names] == [1, 5, 2]
            assert all((one["documentation"] is not None) == seen for one in found.values())


def test_an_answer_does_not_grow_with_repeated_names(shared: LiveCluster) -> None:
    """Otherwise a small request with repeated names could cause a large answer."""
    resource = {"resource_type": 2, "resource_name": "t", "config_names": None}
    with served(shared.cluster) as address, wire(address) as client:
        topics = client.ask(ApiKey.METADATA, 5, topics=["t"] * 9, allow_auto_topic_creation=False)["topics"]
        configs = client.ask(ApiKey.DESCRIBE_CONFIGS, 2, resources=[resource] * 9, include_synonyms=True)[
            "resources"
        ]
        groups = client.ask(ApiKey.DESCRIBE_GROUPS, 2, groups=["g"] * 9)["groups"]
    assert (len(topics), len(configs), len(groups)) == (1, 1, 1)


@pytest.mark.parametrize(
    "key", [ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH]
)
def test_a_partition_that_is_named_again_is_answered_once(key: int, live: LiveCluster) -> None:
    """A request of a megabyte could name a partition 30,000 times, and get its records 30,000 times."""
    (topic,) = REQUESTED[key]["topics"]
    again = [{**topic, "partitions": topic["partitions"] * 9}] * 9
    with served(live.cluster) as address, wire(address) as client:
        for version in REQUESTS[key]:
            once = client.ask(key, version, **REQUESTED[key])
            assert client.ask(key, version, **{**REQUESTED[key], "topics": again}) == once
            assert len(parts(once)) == 1


@pytest.mark.parametrize(
    "key",
    [
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_COMMIT,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_GROUPS,
    ],
)
def test_a_request_for_nothing_has_an_answer_of_nothing(key: int, shared: LiveCluster) -> None:
    """An array may be null on the wire, although Kafka's own clients send none."""
    (name,) = {"topics", "resources", "groups"} & REQUESTED[key].keys()
    with served(shared.cluster) as address, wire(address) as client:
        for version in REQUESTS[key]:
            answer = client.ask(key, version, **{**REQUESTED[key], name: None})
            assert answer[name] == [], version


def test_errors_are_of_one_partition_and_have_kafkas_numbers(shared: LiveCluster) -> None:
    asked = {("t", 0): 1, ("t", 1): 5, ("t", 2): 0, ("nobody", 0): 0, ("t", -1): 0}
    with served(shared.cluster) as address, wire(address) as client:
        found = parts(client.ask(ApiKey.FETCH, 11, **fetch(asked)))
        assert [one["error_code"] for one in found] == [
            OK,
            OUT_OF_RANGE,
            UNKNOWN_TOPIC,
            UNKNOWN_TOPIC,
            UNKNOWN_TOPIC,
        ]
        assert values(found[0]) == [(1, b"b"), (2, b"c")]
        assert (found[0]["highwater_offset"], found[0]["log_start_offset"]) == (3, 0)
        assert client.ask(ApiKey.FETCH, 11, **fetch({}, session_id=4))["error_code"] == NO_SESSION
        times = [EARLIEST, LATEST, 1, 1 << 62]
        asks = [(0, time) for time in times] + [(9, LATEST)]
        answers = []
        for partition, time in asks:
            topics = [{"topic": "t", "partitions": [{"partition": partition, "timestamp": time}]}]
            answers += parts(client.ask(ApiKey.LIST_OFFSETS, 3, replica_id=-1, isolation_level=0, topics=topics))
        assert [(one["offset"], one["timestamp"], one["error_code"]) for one in answers] == [
            (0, -1, OK),
            (3, -1, OK),
            (0, 1, OK),
            (-1, -1, OK),
            (-1, -1, UNKNOWN_TOPIC),
        ]


def test_commits_of_strangers_to_the_group_are_refused_and_change_nothing(live: LiveCluster) -> None:
    commit = REQUESTED[ApiKey.OFFSET_COMMIT]
    offsets = [{"partition": 0, "offset": 1, "metadata": None}, {"partition": 7, "offset": 1, "metadata": None}]
    with served(live.cluster) as address, wire(address) as client:
        with live.unchanged():
            for member in ({"consumer_group_generation_id": 3}, {"consumer_id": "m"}):
                answer = client.ask(ApiKey.OFFSET_COMMIT, 3, **{**commit, **member})
                assert [one["error_code"] for one in parts(answer)] == [UNKNOWN_MEMBER]
        mixed = {**commit, "topics": [{"topic": "t", "partitions": offsets}]}
        answer = client.ask(ApiKey.OFFSET_COMMIT, 3, **mixed)
        assert [one["error_code"] for one in parts(answer)] == [OK, UNKNOWN_TOPIC]
        of_all = client.ask(ApiKey.OFFSET_FETCH, 3, consumer_group="g", topics=None)
        assert [(one["partition"], one["offset"]) for one in parts(of_all)] == [(0, 1)]
        client.ask(ApiKey.OFFSET_COMMIT, 3, **commit)
        of_all = client.ask(ApiKey.OFFSET_FETCH, 3, consumer_group="g", topics=None)
        assert [(one["offset"], one["metadata"]) for one in parts(of_all)] == [(2, "so far")]
        assert client.ask(ApiKey.OFFSET_FETCH, 3, consumer_group="", topics=None)["error_code"] == 24


TOO_LARGE = int(ErrorCode.OFFSET_METADATA_TOO_LARGE)
LONGEST = "m" * 4096
COMMITS: dict[str, tuple[list[tuple[int, int, str]], list[int], dict[int, int]]] = {
    "at the log end": ([(0, 3, "")], [OK], {0: 3}),
    "beyond the log end": ([(0, 4, "")], [OK], {0: 4}),
    "the largest offset": ([(0, (1 << 63) - 1, ""), (1, 0, "")], [OK, OK], {0: (1 << 63) - 1, 1: 0}),
    "the longest metadata": ([(0, 1, LONGEST)], [OK], {0: 1}),
    "metadata too large for one": ([(0, 1, LONGEST + "m"), (1, 0, "")], [TOO_LARGE, OK], {1: 0}),
    "too large in bytes": ([(0, 1, LONGEST[1:] + "\xe9")], [TOO_LARGE], {}),
    "too large, and no commit": ([(0, -1, LONGEST + "m")], [TOO_LARGE], {}),
    "each of its own": ([(0, 9, LONGEST + "m"), (1, 9, ""), (7, 9, "")], [TOO_LARGE, OK, UNKNOWN_TOPIC], {1: 9}),
}
"""For each case: the partitions with offset and metadata, the answers, and the group's commits afterwards."""


@pytest.mark.parametrize("case", COMMITS)
def test_each_partition_of_a_commit_has_its_own_answer(live: LiveCluster, case: str) -> None:
    asked, answered, held = COMMITS[case]
    places = [{"partition": number, "offset": offset, "metadata": text} for number, offset, text in asked]
    commit = {**REQUESTED[ApiKey.OFFSET_COMMIT], "topics": [{"topic": "t", "partitions": places}]}
    with served(live.cluster) as address, wire(address) as client:
        answer = client.ask(ApiKey.OFFSET_COMMIT, 3, **{**commit, "consumer_group": case.replace(" ", "-")[:20]})
    assert [one["error_code"] for one in parts(answer)] == answered
    found = live.cluster.groups.committed(case.replace(" ", "-")[:20])
    assert {number: one.offset for (_, number), one in found.items()} == held


def test_a_commit_keeps_its_leader_epoch(live: LiveCluster) -> None:
    """Versions that have a leader epoch keep it, as Kafka does; -1 means that there is none."""
    commit = REQUESTED[ApiKey.OFFSET_COMMIT]
    with served(live.cluster) as address, wire(address) as client:
        for version, held, answered in ((6, 5, 5), (5, None, -1)):
            client.ask(ApiKey.OFFSET_COMMIT, version, **commit)
            assert live.cluster.groups.committed("g")["t", 0].leader_epoch == held
            for with_epoch in (False, True):
                (one,) = parts(client.ask(ApiKey.OFFSET_FETCH, 4 + with_epoch, consumer_group="g", topics=None))
                assert one.get("leader_epoch") == (answered if with_epoch else None)


def test_a_fetch_waits_for_what_is_appended(live: LiveCluster) -> None:
    with served(live.cluster) as address, wire(address) as client, ThreadPoolExecutor(1) as pool:
        assert values(parts(client.ask(ApiKey.FETCH, 11, **fetch({("t", 0): 3})))[0]) == []
        waiting = pool.submit(
            client.ask, ApiKey.FETCH, 11, **fetch({("t", 0): 3, ("t", 1): 0}, max_wait_time=LONG_MS)
        )
        live.append({1: ["new"]}).raise_for_failures()
        assert [values(one) for one in parts(waiting.result(60))] == [[], [(0, b"new")]]


@pytest.mark.parametrize("offset", [0, 3, 5])
@pytest.mark.parametrize("log_start", [0, 3])
def test_a_topic_that_is_deleted_is_unknown_at_once_and_a_new_one_is_read(
    offset: int, log_start: int, live: LiveCluster
) -> None:
    if log_start:
        live.cluster.topics.delete_records("t", {0: log_start}).raise_for_failures()
    code_before = OK if offset == 3 or offset == log_start else OUT_OF_RANGE
    with served(live.cluster) as address, wire(address) as client:

        def asked(at: int) -> tuple[int, list[tuple[int, bytes]]]:
            live.clock.sleep(1)  # longer than the end of a partition is remembered, shorter than the metadata
            time.sleep(0.02)  # and the same by the machine's clock
            (found,) = parts(client.ask(ApiKey.FETCH, 11, **fetch({("t", 0): at})))
            return found["error_code"], values(found)

        assert asked(offset)[0] == code_before
        live.cluster.topics.delete("t").raise_for_failures()
        assert asked(offset) == (UNKNOWN_TOPIC, [])
        live.topic()
        assert asked(0) == (OK, [])
        live.cluster.topics.delete("t").raise_for_failures()
        live.topic()
        live.append(["new"]).raise_for_failures()
        assert asked(0) == (OK, [(0, b"new")])
        live.cluster.topics.delete("t").raise_for_failures()
        live.topic()
        live.append(["newer"] * 9).raise_for_failures()
        assert asked(5) == (OK, [(at, b"newer") for at in range(5, 9)])


def test_offsets_are_found_although_the_leader_of_another_partition_is_away(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, on_disk=True)
    live.topic(partitions=3, copies=1)
    live.append({0: ["a"], 1: ["b"], 2: ["c"]}).raise_for_failures()
    topic_id = live.cluster.image.topic("t").topic_id
    leaders = [live.cluster.image.view(topic_id, partition).leader for partition in range(3)]
    away = next(number for number, leader in enumerate(leaders) if leader == 3)
    wanted = [{"partition": number, "timestamp": LATEST} for number in range(3)]
    topics = [{"topic": "t", "partitions": wanted}]
    with served(live.cluster) as address, wire(address) as client, live.unreachable(3):
        found = parts(client.ask(ApiKey.LIST_OFFSETS, 3, replica_id=-1, isolation_level=0, topics=topics))
    answers = {one["partition"]: (one["error_code"], one["offset"]) for one in found}
    assert answers.pop(away) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert set(answers.values()) == {(OK, 1)}


def test_offsets_of_a_topic_that_was_just_made_are_known(live: LiveCluster) -> None:
    with served(live.cluster) as address, wire(address) as client:
        live.topic("new")
        live.append(["a"], "new").raise_for_failures()
        asked = {
            **REQUESTED[ApiKey.LIST_OFFSETS],
            "topics": [{**REQUESTED[ApiKey.LIST_OFFSETS]["topics"][0], "topic": "new"}],
        }
        (found,) = parts(client.ask(ApiKey.LIST_OFFSETS, 3, **asked))
        assert (found["error_code"], found["offset"]) == (OK, 1)


def test_the_cost_of_a_fetch_that_finds_nothing(live: LiveCluster) -> None:
    """One look at the leader: a listing, and a read of the root's identity. For an empty log the metadata is read,
    too, but at most as often as the ends of partitions are looked up, whatever the number of partitions.
    """
    ports = ports_of(live.cluster)

    def cost(act: Callable[[], object]) -> tuple[int, int]:
        before = ports.storage.counts()
        act()
        counts = ports.storage.counts() - before
        assert counts.requests == counts.lists + counts.reads
        return counts.lists, counts.reads

    with served(live.cluster) as address, wire(address) as client:

        def of_fetch(partition: int, offset: int, pause_s: float = 0.0) -> tuple[int, int]:
            live.clock.sleep(pause_s)
            time.sleep(0.02)  # longer than the end of a partition is remembered, by the machine's clock
            return cost(lambda: client.ask(ApiKey.FETCH, 11, **fetch({("t", partition): offset})))

        of_fetch(0, 3)
        assert (of_fetch(0, 3), of_fetch(0, 3, pause_s=5)) == ((1, 1), (1, 1))
        assert (of_fetch(1, 0), of_fetch(1, 0), of_fetch(1, 0, pause_s=1)) == ((2, 2), (1, 1), (2, 2))
    assert cost(ports.metadata.image) == (1, 1)  # the metadata has one voter


@pytest.mark.slow
def test_an_answer_is_bounded_and_has_at_least_one_record(live: LiveCluster) -> None:
    large = "x" * (MOST_BYTES // 4)
    live.append({1: [large] * 8}).raise_for_failures()
    with served(live.cluster) as address, wire(address) as client:
        some = fetch({("t", 1): 0}, max_bytes=1 << 30, min_bytes=1 << 30, max_wait_time=LONG_MS)
        (found,) = parts(client.ask(ApiKey.FETCH, 11, **some))
        assert 1 <= len(values(found)) <= 4
        (one,) = parts(client.ask(ApiKey.FETCH, 11, **fetch({("t", 1): 7}, max_bytes=1)))
        assert [offset for offset, _ in values(one)] == [7]


def test_a_producer_is_refused_and_named_in_the_log_once_a_minute(
    live: LiveCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def logged() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name == "stratalog.serve"]

    with served(live.cluster) as address, wire(address) as client:
        for version in REQUESTS[ApiKey.PRODUCE]:
            client.ask(ApiKey.PRODUCE, version, **REQUESTED[ApiKey.PRODUCE])
        (line,) = logged()
        assert line.startswith("refused: client 'test' at 127.0.0.1 produces to t. This endpoint is read-only: ")
        assert "stratalog mirror" in line
        assert "stratalog produce" in line
        for transactional_id, code in ((None, 31), ("x", 53)):
            asked = {"transactional_id": transactional_id, "transaction_timeout_ms": 1000}
            assert client.ask(ApiKey.INIT_PRODUCER_ID, 0, **asked)["error_code"] == code
        assert logged() == [line]
        live.clock.sleep(60)
        with wire(address) as quiet, pytest.raises(EOFError):
            quiet.ask(ApiKey.PRODUCE, 8, **{**REQUESTED[ApiKey.PRODUCE], "required_acks": 0})
        assert logged() == [line, line]
        for number in range(200):
            client.client_id = f"\n{number}" * 100
            client.ask(ApiKey.PRODUCE, 8, **REQUESTED[ApiKey.PRODUCE])
        assert len(logged()) == 1 + 100
        assert all(one.isprintable() and len(one) < 1000 for one in logged())


def strange() -> list[bytes]:
    """Invalid frames: truncated, with wrong lengths, of unknown APIs, and noise."""
    whole = (ApiKey.FETCH).to_bytes(2, "big") + (11).to_bytes(2, "big") + (7).to_bytes(4, "big") + b"\xff\xff"
    metadata = (ApiKey.METADATA).to_bytes(2, "big") + (5).to_bytes(2, "big") + (7).to_bytes(4, "big") + b"\xff\xff"
    offsets = (
        (ApiKey.LIST_OFFSETS).to_bytes(2, "big") + (11).to_bytes(2, "big") + (7).to_bytes(4, "big") + b"\xff\xff"
    )
    of_nobody = b"\xff\xff\xff\xff\0"
    rng = random.Random(7)
    return [
        b"\0",
        whole,
        whole + b"\0" * 11,
        whole + b"\x7f" * 40,
        metadata + b"\x7f\xff\xff\xff",
        metadata + b"\x7f\xff\xff\xff" + b"\xff\xfe" * 50,
        metadata + b"\0\0\0\1\0\2\xff\xfe\0",
        *(
            offsets + tail
            for tail in (b"", b"\0", b"\xff" * 9, b"\x01\xff\xff\xff\xff\x0f", b"\1\0\x7f" + b"a" * 9)
        ),
        *(
            offsets + b"\0" + of_nobody + tail
            for tail in (b"", b"\xff\xff\xff\xff\x0f", b"\2\xff\xff\xff\x0fa", b"\2\2t\2")
        ),
        b"\0\x0b" + whole[2:],
        b"GET / HTTP/1.1\r\nHost: log\r\n\r\n",
        *(whole[: rng.randrange(len(whole))] + rng.randbytes(rng.randrange(200)) for _ in range(50)),
    ]


def test_bytes_of_strangers_end_their_connection_and_nothing_else(shared: LiveCluster) -> None:
    with served(shared.cluster) as address, wire(address) as other:
        for frame in strange():
            with wire(address) as client:
                client.send(frame)
                assert client.is_closed(), frame
        for length in (0, MOST_REQUEST_BYTES + 1, (1 << 32) - 1):
            with wire(address) as client:
                client.socket.sendall(length.to_bytes(4, "big"))
                assert client.is_closed()
        quiet = {**REQUESTED[ApiKey.PRODUCE], "required_acks": 0}
        with wire(address) as client, pytest.raises(EOFError):
            client.ask(ApiKey.PRODUCE, 8, **quiet)
        with wire(address) as gone:
            gone.socket.sendall(b"\0\0")
        assert other.ask(ApiKey.LIST_OFFSETS, 3, **REQUESTED[ApiKey.LIST_OFFSETS])["topics"][0]["topic"] == "t"


def test_more_connections_than_allowed_are_refused(shared: LiveCluster) -> None:
    with served(shared.cluster, max_connections=1) as address, wire(address) as first:
        first.ask(ApiKey.API_VERSIONS, 0)
        with wire(address) as second:
            assert second.is_closed()
        first.ask(ApiKey.API_VERSIONS, 0)


def test_it_ends_with_clients_that_wait(shared: LiveCluster) -> None:
    with shared.cluster.serve("127.0.0.1:0") as endpoint:
        client = Wire(endpoint.address)
        client.ask(ApiKey.API_VERSIONS, 0)
        frame = fetch({("t", 1): 0}, max_wait_time=LONG_MS)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.ask, ApiKey.FETCH, 11, **frame)
            endpoint.close()
            with pytest.raises((EOFError, ConnectionResetError)):
                waiting.result(60)
        client.close()
    assert endpoint.report().totals["connections"] == 1


@pytest.mark.slow
def test_connections_that_begin_as_it_ends_are_closed(shared: LiveCluster) -> None:
    """An open socket would cause a ResourceWarning, and so an error of this test."""
    for _ in range(40):
        with served(shared.cluster) as address:
            clients = [Wire(address) for _ in range(4)]
        assert all(client.is_closed() for client in clients)
        for client in clients:
            client.close()
    gc.collect()
