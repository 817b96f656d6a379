"""Whole numbers, for every method: numpy's are accepted; floats and bools are refused before anything is written.
The decoders of records and footers accept neither, because an unreadable value makes everything beside it
unreadable.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stratalog import Cluster, OffsetAndMetadata
from stratalog.partitions.errors import (
    InvalidCallError,
    InvalidConfigError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.numbers import whole, wholes
from tests.unit.cluster_harness import LiveCluster, live_and_shared
from tests.unit.harness import batch


def built(folder: Path) -> LiveCluster:
    """``t``: two partitions, of three replicas, the first with offsets [0, 5)."""
    live = LiveCluster(folder, 3)
    live.cluster.topics.alter_configs(
        None, {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
    )
    live.topic("t", partitions=2)
    live.append({0: ["a", "b", "c", "d", "e"]}).raise_for_failures()
    live.cluster.groups.commit("g", {("t", 0): 2}).raise_for_failures()
    live.cluster.transactions.begin("known").abort().raise_for_failures()
    return live


live, shared = live_and_shared(built)


def records() -> Any:
    return {0: [batch(["x"], 1)]}


WITH_A_NUMBER: dict[str, Callable[[Cluster, Any], Any]] = {
    "delete_records": lambda c, n: c.topics.delete_records("t", {0: n}),
    "fence": lambda c, n: c.brokers.fence([n], force=True),
    "unfence": lambda c, n: c.brokers.unfence(n),
    "decommission": lambda c, n: c.brokers.decommission([n]),
    "register": lambda c, n: c.brokers.register([n]),
    "add_brokers": lambda c, n: c.brokers.add([n]),
    "bootstrap": lambda c, n: c.bootstrap([n]),
    "elect": lambda c, n: c.elect("t", leader=n),
    "elect partitions": lambda c, n: c.elect("t", [n]),
    "reassign": lambda c, n: c.reassign({("t", 0): [n, 3]}),
    "reassign a partition": lambda c, n: c.reassign({("t", n): [2, 3]}),
    "plan_replicas": lambda c, n: c.plan_replicas("t", drain=[n]),
    "add_voter": lambda c, n: c.quorum.add_voter(n),
    "remove_voter": lambda c, n: c.quorum.remove_voter(n),
    "create_topic": lambda c, n: c.topics.create("u", partitions=n),
    "create_topic copies": lambda c, n: c.topics.create("u", replication_factor=n),
    "create_partitions": lambda c, n: c.topics.create_partitions("t", n),
    "append sequence": lambda c, n: c.append_batches("t", records(), producer="p", sequence=n),
    "append producer epoch": lambda c, n: c.append_batches(
        "t", records(), producer="p", sequence=0, producer_epoch=n
    ),
    "transaction": lambda c, n: c.transactions.begin("x", timeout_ms=n),
    "commit": lambda c, n: c.groups.commit("g", {("t", 0): n}),
    "commit leader epoch": lambda c, n: c.groups.commit("g", {("t", 0): OffsetAndMetadata(1, n)}),
    "reset_offsets": lambda c, n: c.groups.reset_offsets("g", "t", to=n),
    "reset_offsets partitions": lambda c, n: c.groups.reset_offsets("g", "t", to=1, partitions=[n]),
    "shift offsets": lambda c, n: c.groups.reset_offsets("g", "t", shift_by=n, partitions=[0]),
    "fetch": lambda c, n: c.fetch("t", 0, n),
    "fetch_many": lambda c, n: list(c.fetch_many({("t", 0): n})),
    "plan_read start": lambda c, n: c.plan_read("t", n, partitions=[0]),
    "plan_read by partition": lambda c, n: c.plan_read("t", {0: n}),
    "plan_read last": lambda c, n: c.plan_read("t", last=n),
    "plan_read partitions": lambda c, n: c.plan_read("t", partitions=[n]),
    "tail start": lambda c, n: list(c.tail("t", [0], start=n, follow=False)),
    "tail last": lambda c, n: list(c.tail("t", last=n, follow=False)),
    "tail partitions": lambda c, n: c.tail("t", [n]),
    "offset_for_leader_epoch": lambda c, n: c.offset_for_leader_epoch("t", 0, n),
}


@pytest.mark.parametrize("number", [1.0, np.float64(1), True, "1"], ids=repr)
@pytest.mark.parametrize("call", WITH_A_NUMBER)
def test_a_value_that_is_no_whole_number_is_refused_by_name_and_nothing_is_changed(
    shared: LiveCluster, call: str, number: Any
) -> None:
    found = repr(number).replace("(", r"\(").replace(")", r"\)")
    with shared.unchanged(), pytest.raises(InvalidCallError, match=found):
        WITH_A_NUMBER[call](shared.driver(), number)


@pytest.mark.sample(9)
@pytest.mark.parametrize("call", WITH_A_NUMBER)
@pytest.mark.slow
def test_an_integer_of_numpy_is_an_integer(tmp_path: Path, call: str) -> None:
    """The call has the same result as with Python's own numbers, and its output is readable."""
    ends = []
    for folder, number in (("plain", 1), ("numpy", np.int64(1))):
        (tmp_path / folder).mkdir()
        live = built(tmp_path / folder)
        try:
            found = WITH_A_NUMBER[call](live.cluster, number)
            ends.append(repr(found.rows) if hasattr(found, "rows") else type(found).__name__)
            if hasattr(found, "to_json"):
                found.to_json()
        except StratalogError as error:
            ends.append(str(error))
        again = live.driver()
        assert again.fetch("t", 0, 3).records.num_rows
        assert again.append_batches("t", records()).ok
        assert again.groups.list().ok
        assert again.transactions.list().ok
    assert ends[0] == ends[1]


def test_a_whole_number_is_a_plain_int_of_its_range() -> None:
    assert type(whole(np.int32(7), "x")) is int
    assert whole((1 << 63) - 1, "x") == (1 << 63) - 1
    assert whole(-(1 << 63), "x") == -(1 << 63)
    assert wholes(np.int64(3), "x") == wholes([3], "x") == wholes(np.array([3]), "x") == (3,)
    for wrong in (1 << 63, -(1 << 63) - 1, np.True_, None, np.array([1, 2])):
        with pytest.raises(InvalidCallError, match=r"x .*a whole number of 64 bits"):
            whole(wrong, "x")
    for outside in (0, 4):
        with pytest.raises(InvalidCallError, match=f"x {outside}: give a whole number from 1 to 3"):
            whole(outside, "x", 1, 3)


def test_one_broker_is_named_as_several_are(live: LiveCluster) -> None:
    for call in (
        live.cluster.brokers.register,
        live.cluster.brokers.fence,
        live.cluster.brokers.unfence,
    ):
        assert [row["broker"] for row in call(3).rows] == [3]  # type: ignore[operator]
    with pytest.raises(InvalidCallError, match="broker 3 is already in the cluster"):
        live.cluster.brokers.add(3)
    assert live.cluster.brokers.add(3, if_not_exists=True).notes == ["broker 3 is already in the cluster"]


@pytest.mark.parametrize("partition", [-1, 2])
def test_a_partition_that_is_invalid_is_not_quietly_left_out_by_recover(live: LiveCluster, partition: int) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match=f"no partition {partition}"):
        live.cluster.recover("t", str(live.folder / "out"), partitions=[partition])


@pytest.mark.parametrize(("offsets", "says"), [({"t": 1}, "write it as"), (["t"], "are not offsets")])
def test_offsets_to_fetch_are_named_as_those_to_commit(shared: LiveCluster, offsets: Any, says: str) -> None:
    with pytest.raises(InvalidCallError, match=says):
        shared.cluster.fetch_many(offsets)


def test_the_value_of_a_config_is_its_text(live: LiveCluster) -> None:
    """The config is set for an existing topic, for the cluster, and for a new topic."""
    live.cluster.topics.alter_configs("t", {"retention.ms": 5, "unclean.leader.election.enable": True})
    live.cluster.topics.alter_configs(None, {"num.partitions": np.int64(3)})
    live.cluster.topics.create("u", configs={"retention.ms": 7})
    image = live.driver().image
    assert image.topic("t").configs == {"retention.ms": "5", "unclean.leader.election.enable": "true"}
    assert (image.configs["num.partitions"], image.topic("u").configs["retention.ms"]) == ("3", "7")
    with pytest.raises(InvalidConfigError, match=r"retention.ms = '5\.0' is not valid"):
        live.cluster.topics.alter_configs("t", {"retention.ms": 5.0})
