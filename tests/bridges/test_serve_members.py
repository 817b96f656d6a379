"""Consumer groups with members at ``cluster.serve``: librdkafka's consumers, and Kafka's rebalance protocol at the
level of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from stratalog.bridges.serve import members
from stratalog.bridges.serve.codes import ErrorCode
from stratalog.bridges.serve.protocol import ApiKey
from tests.bridges.endpoint_harness import TIMEOUT_S, Wire, consumer, served, wire
from tests.unit.cluster_harness import LiveCluster

Address = tuple[str, int]
LONG_MS = 60_000


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """Topic ``t``, four partitions of three records each."""
    made = LiveCluster(tmp_path)
    made.topic(partitions=4)
    made.append({partition: ["a", "b", "c"] for partition in range(4)}).raise_for_failures()
    return made


@pytest.fixture
def address(live: LiveCluster) -> Iterator[Address]:
    with served(live.cluster) as found:
        yield found


# ------------------------------------------------------------------------------- librdkafka's consumers


def polled(consumers: list[Consumer], done: Callable[[], bool]) -> list[tuple[int, int, int]]:
    """Consumer, partition and offset of each record until ``done``."""
    found = []
    for _ in range(int(TIMEOUT_S / 0.05)):
        for number, one in enumerate(consumers):
            message = one.poll(0.05)
            if message is None:
                continue
            if message.error() is None:
                found.append((number, message.partition(), message.offset()))
            elif message.error().code() != KafkaError._PARTITION_EOF:
                raise KafkaException(message.error())
        if done():
            return found
    raise AssertionError(f"not done with {found}")


def assigned(one: Consumer) -> set[int]:
    return {place.partition for place in one.assignment()}


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.slow
def test_consumers_share_partitions_and_take_over_those_of_one_that_leaves(
    strategy: str, live: LiveCluster, address: Address
) -> None:
    configs = {"auto_offset_reset": "earliest", "partition_assignment_strategy": strategy}
    with consumer(address, **configs) as first, consumer(address, **configs) as second:
        both = [first, second]
        for one in both:
            one.subscribe(["t"])
        read: list[tuple[int, int, int]] = []
        read += polled(both, lambda: len(assigned(first)) == len(assigned(second)) == 2)
        assert assigned(first) | assigned(second) == {0, 1, 2, 3}
        read += polled(both, lambda: sum(one.position(one.assignment())[0].offset == 3 for one in both) == 2)
        admin = AdminClient({"bootstrap.servers": "{}:{}".format(*address)})
        described = admin.describe_consumer_groups(["g"], request_timeout=TIMEOUT_S)["g"].result()
        assert (described.state.name, len(described.members)) == ("STABLE", 2)
        for one in both:
            one.commit(asynchronous=False)
        second.close()
        read += polled([first], lambda: assigned(first) == {0, 1, 2, 3})
        live.append({partition: ["d"] for partition in range(4)}).raise_for_failures()
        last = polled([first], lambda: all(place.offset == 4 for place in first.position(first.assignment())))
        assert {(partition, offset) for _, partition, offset in last} >= {(partition, 3) for partition in range(4)}
        first.commit(asynchronous=False)
    committed = live.cluster.groups.committed("g")
    assert {partition: one.offset for (_, partition), one in committed.items()} == dict.fromkeys(range(4), 4)


@pytest.mark.slow
def test_two_endpoints_know_nothing_of_the_members_of_each_other(live: LiveCluster) -> None:
    with ExitStack() as stack:
        both = []
        for _ in range(2):
            address = stack.enter_context(served(live.cluster))
            both.append(stack.enter_context(consumer(address, auto_offset_reset="earliest")))
            both[-1].subscribe(["t"])
        polled(both, lambda: all(len(assigned(one)) == 4 for one in both))


@pytest.mark.slow
def test_an_endpoint_that_comes_back_takes_its_members_again(live: LiveCluster) -> None:
    with served(live.cluster) as first:
        port = first[1]
        one = Consumer(
            {
                "bootstrap.servers": f"127.0.0.1:{port}",
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "reconnect.backoff.max.ms": 200,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 100,
                "enable.auto.commit": False,
            }
        )
        one.subscribe(["t"])
        polled(
            [one],
            lambda: all(place.offset == 3 for place in one.position(one.assignment())) and len(assigned(one)) == 4,
        )
        one.commit(asynchronous=False)

    def all_committed() -> bool:
        with suppress(KafkaException):  # the consumer has not joined again yet, or there is nothing new
            one.commit(asynchronous=False)
        return {place.offset for place in live.cluster.groups.committed("g").values()} == {4}

    with live.cluster.serve(f"127.0.0.1:{port}", poll_s=0.01):
        live.append({partition: ["d"] for partition in range(4)}).raise_for_failures()
        seen = {(partition, offset) for _, partition, offset in polled([one], all_committed)}
        one.close()
    assert seen == {(partition, 3) for partition in range(4)}


# ------------------------------------------------------------------------------------- raw protocol


class Joining:
    """A member at the level of bytes, which records the answer to each request."""

    def __init__(self, address: Address, pool: ThreadPoolExecutor, stack: ExitStack) -> None:
        self.wire: Wire = stack.enter_context(wire(address))
        self.pool = pool
        self.member_id = ""
        self.generation = -1

    def join(self, version: int = 2, **fields: Any) -> Future[dict[str, Any]]:
        given = {
            "group": "g",
            "session_timeout": LONG_MS,
            "rebalance_timeout": LONG_MS,
            "member_id": self.member_id,
            "protocol_type": "consumer",
            "group_protocols": [{"protocol_name": "range", "protocol_metadata": b"t"}],
        }
        return self.pool.submit(self._join, version, {**given, **fields})

    def _join(self, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        answer = self.wire.ask(ApiKey.JOIN_GROUP, version, **fields)
        if answer["error_code"] == ErrorCode.NONE:
            self.member_id, self.generation = answer["member_id"], answer["generation_id"]
        return answer

    @property
    def place(self) -> dict[str, Any]:
        return {"group": "g", "generation_id": self.generation, "member_id": self.member_id}

    def sync(self, version: int = 1, **assignment: bytes) -> Future[dict[str, Any]]:
        given = [{"member_id": key, "member_metadata": data} for key, data in assignment.items()]
        return self.pool.submit(self.wire.ask, ApiKey.SYNC_GROUP, version, **self.place, group_assignment=given)

    def heartbeat(self, version: int = 1, **fields: Any) -> int:
        return int(self.wire.ask(ApiKey.HEARTBEAT, version, **{**self.place, **fields})["error_code"])

    def leave(self, version: int = 1) -> int:
        asked = {"group": "g", "member_id": self.member_id}
        return int(self.wire.ask(ApiKey.LEAVE_GROUP, version, **asked)["error_code"])

    def commit(self, **fields: Any) -> int:
        asked: dict[str, Any] = {
            "consumer_group": "g",
            "consumer_group_generation_id": self.generation,
            "consumer_id": self.member_id,
            "retention_time": -1,
            "topics": [{"topic": "t", "partitions": [{"partition": 0, "offset": 1, "metadata": ""}]}],
        }
        (topic,) = self.wire.ask(ApiKey.OFFSET_COMMIT, 2, **{**asked, **fields})["topics"]
        return int(topic["partitions"][0]["error_code"])


@pytest.fixture
def members_of(address: Address) -> Iterator[Callable[[int], list[Joining]]]:
    """A number of connections that may become members."""
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(8))
        yield lambda count: [Joining(address, pool, stack) for _ in range(count)]


def together(*some: Joining, **fields: Any) -> tuple[Joining, list[Joining]]:
    """Let them join one generation; the leader assigns to each its own name. Returns the leader and the others."""
    answers = [future.result(TIMEOUT_S) for future in [one.join(**fields) for one in some]]
    assert {answer["error_code"] for answer in answers} == {ErrorCode.NONE}
    (leader,) = {answer["leader_id"] for answer in answers}
    (members,) = [answer["members"] for answer in answers if answer["members"]]
    assert {one["member_id"] for one in members} == {one.member_id for one in some}
    shares = {one.member_id: one.member_id.encode() for one in some}
    syncs = [one.sync(**(shares if one.member_id == leader else {})) for one in some]
    assert [sync.result(TIMEOUT_S)["member_assignment"] for sync in syncs] == list(shares.values())
    (first,) = [one for one in some if one.member_id == leader]
    return first, [one for one in some if one is not first]


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.slow
def test_a_generation_begins_with_all_and_ends_when_one_leaves(
    version: int, members_of: Callable[[int], list[Joining]]
) -> None:
    leader, (other,) = together(*members_of(2), version=version)
    assert (leader.generation, other.generation) == (1, 1)
    assert (leader.heartbeat(), other.heartbeat(0)) == (ErrorCode.NONE, ErrorCode.NONE)
    assert (
        other.sync(0).result(TIMEOUT_S)["member_assignment"] == other.member_id.encode()
    )  # a repeated request gets the same assignment again
    assert leader.leave(min(version, 1)) == ErrorCode.NONE
    assert leader.leave() == ErrorCode.UNKNOWN_MEMBER_ID
    assert other.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert other.sync().result(TIMEOUT_S)["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS
    alone, _ = together(other)
    assert (alone.generation, alone.heartbeat()) == (2, ErrorCode.NONE)


_CHANGED = {"group_protocols": [{"protocol_name": "range", "protocol_metadata": b"changed"}]}
_OTHER_ORDER = {
    "group_protocols": [{"protocol_name": name, "protocol_metadata": b"t"} for name in ("range", "sticky")]
}


@pytest.mark.parametrize(
    ("leads", "fields", "rebalances"),
    [
        (False, {}, False),
        (False, {"session_timeout": LONG_MS // 2, "rebalance_timeout": LONG_MS // 2}, False),
        (False, _CHANGED, True),
        (False, _OTHER_ORDER, True),
        (True, {}, True),
        (True, _CHANGED, True),
    ],
)
@pytest.mark.slow
def test_which_member_makes_a_stable_group_rebalance_by_joining_again(
    leads: bool, fields: dict[str, Any], rebalances: bool, members_of: Callable[[int], list[Joining]]
) -> None:
    leader, (other,) = together(*members_of(2))
    again, waits = (leader, other) if leads else (other, leader)
    answer = again.join(**fields)
    if rebalances:
        until(lambda: waits.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS)
        assert waits.join().result(TIMEOUT_S)["generation_id"] == 2
        assert answer.result(TIMEOUT_S)["generation_id"] == 2
    else:
        found = answer.result(TIMEOUT_S)
        assert (found["error_code"], found["generation_id"], found["leader_id"]) == (
            ErrorCode.NONE,
            1,
            leader.member_id,
        )
        assert (found["member_id"], found["members"]) == (other.member_id, [])
        assert other.sync().result(TIMEOUT_S)["member_assignment"] == other.member_id.encode()
        assert (leader.heartbeat(), other.heartbeat()) == (ErrorCode.NONE, ErrorCode.NONE)


@pytest.mark.slow
def test_members_that_lost_the_answer_to_their_join_get_it_again(
    members_of: Callable[[int], list[Joining]],
) -> None:
    some = members_of(2)
    first = [one.result(TIMEOUT_S) for one in [one.join() for one in some]]
    again = [one.join().result(TIMEOUT_S) for one in some]
    assert again == first
    assert {answer["generation_id"] for answer in again} == {1}


@pytest.mark.slow
def test_only_members_of_the_generation_commit(
    live: LiveCluster, members_of: Callable[[int], list[Joining]]
) -> None:
    leader, (other,) = together(*members_of(2))
    with live.unchanged():
        assert leader.commit(consumer_group_generation_id=7) == ErrorCode.ILLEGAL_GENERATION
        assert leader.commit(consumer_id="nobody") == ErrorCode.UNKNOWN_MEMBER_ID
        assert leader.commit(consumer_group_generation_id=-1, consumer_id="") == ErrorCode.UNKNOWN_MEMBER_ID
        assert leader.heartbeat(generation_id=7) == ErrorCode.ILLEGAL_GENERATION
        assert leader.heartbeat(member_id="nobody") == ErrorCode.UNKNOWN_MEMBER_ID
        assert leader.heartbeat(group="nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    assert other.commit() == ErrorCode.NONE
    assert live.cluster.groups.committed("g")["t", 0].offset == 1
    other.leave()
    assert leader.commit() == ErrorCode.NONE  # a member may commit its own partitions before it joins again
    assert leader.join().result(TIMEOUT_S)["generation_id"] == 2
    with live.unchanged():
        assert leader.commit() == ErrorCode.REBALANCE_IN_PROGRESS
    leader.leave()
    assert leader.commit(consumer_group_generation_id=-1, consumer_id="") == ErrorCode.NONE


def until(what: Callable[[], bool]) -> None:
    for _ in range(int(TIMEOUT_S * 100)):
        if what():
            return
    raise AssertionError("it does not come")


@pytest.mark.slow
def test_a_member_without_a_heartbeat_is_no_longer_a_member(members_of: Callable[[int], list[Joining]]) -> None:
    lasting, brief = members_of(2)
    answers = [lasting.join(), brief.join(session_timeout=200)]
    messages = [one.result(TIMEOUT_S) for one in answers]
    first = lasting if messages[0]["leader_id"] == lasting.member_id else brief
    first.sync().result(TIMEOUT_S)
    until(lambda: lasting.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS)
    assert brief.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    together(lasting)


@pytest.mark.slow
def test_nobody_waits_longer_than_the_rebalance_for_one_that_does_not_join(
    members_of: Callable[[int], list[Joining]],
) -> None:
    leader, (other,) = together(*members_of(2), rebalance_timeout=300)
    again = [{"protocol_name": "range", "protocol_metadata": b"u"}]
    answer = other.join(group_protocols=again, rebalance_timeout=300)
    until(lambda: leader.heartbeat() in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION))
    assert [one["member_metadata"] for one in answer.result(TIMEOUT_S)["members"]] == [b"u"]


@pytest.mark.slow
def test_nobody_waits_longer_than_the_rebalance_for_a_leader_that_assigns_nothing(
    members_of: Callable[[int], list[Joining]],
) -> None:
    some = members_of(2)
    messages = [one.result(TIMEOUT_S) for one in [one.join(rebalance_timeout=300) for one in some]]
    leader, other = some if messages[0]["members"] else some[::-1]
    assert other.sync().result(TIMEOUT_S)["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS
    assert leader.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    together(other)


@pytest.mark.slow
def test_the_assignor_is_one_that_all_members_have_and_most_prefer(
    members_of: Callable[[int], list[Joining]],
) -> None:
    liked = (["a", "c", "b"], ["b", "c"], ["c", "b", "x"])
    some = members_of(len(liked))
    lists = [[{"protocol_name": name, "protocol_metadata": b"t"} for name in names] for names in liked]
    joins = [one.join(group_protocols=names) for one, names in zip(some, lists, strict=True)]
    assert {join.result(TIMEOUT_S)["group_protocol"] for join in joins} == {"c"}
    (stranger,) = members_of(1)
    unknown = stranger.join(group_protocols=[{"protocol_name": "x", "protocol_metadata": b"t"}])
    assert unknown.result(TIMEOUT_S)["error_code"] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group": None}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout": 0}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_protocols": None}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_bad_request_to_join_makes_no_member(
    fields: dict[str, Any], code: int, address: Address, members_of: Callable[[int], list[Joining]]
) -> None:
    (one,) = members_of(1)
    assert one.join(**fields).result(TIMEOUT_S)["error_code"] == code
    assert one.wire.ask(ApiKey.LIST_GROUPS, 2)["groups"] == []


@pytest.mark.slow
def test_strangers_fill_no_memory(
    members_of: Callable[[int], list[Joining]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "_MOST_BYTES", 1000)
    monkeypatch.setattr(members, "_MOST_MEMBERS", 2)
    some = members_of(3)
    large = [{"protocol_name": "range", "protocol_metadata": b"t" * 600}]
    assert some[0].join(group_protocols=large).result(TIMEOUT_S)["error_code"] == ErrorCode.NONE
    refused = some[1].join(group="other", group_protocols=large).result(TIMEOUT_S)
    assert refused["error_code"] == ErrorCode.GROUP_MAX_SIZE_REACHED
    much = some[0].sync(**{some[0].member_id: b"t" * 600}).result(TIMEOUT_S)
    assert much["error_code"] == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert some[1].join(group="other").result(TIMEOUT_S)["error_code"] == ErrorCode.NONE
    assert some[2].join(group="third").result(TIMEOUT_S)["error_code"] == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert some[0].leave() == ErrorCode.NONE
    assert some[2].join(group="third").result(TIMEOUT_S)["error_code"] == ErrorCode.NONE
