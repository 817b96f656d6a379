"""Help and completion show every public method of the cluster."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from stratalog import Cluster
from stratalog.engine.cluster import Cluster as Core
from stratalog.engine.cluster.arguments import declared
from stratalog.engine.cluster.brokers import Brokers
from stratalog.engine.cluster.catalog import Catalog
from stratalog.engine.cluster.client import Client
from stratalog.engine.cluster.groups import Groups
from stratalog.engine.cluster.quorum import Quorum
from stratalog.engine.cluster.topics import Topics
from stratalog.engine.cluster.transactions import Transactions
from stratalog.engine.reading.bounds import ReadQuery
from stratalog.engine.reading.tail_start import TailOptions
from stratalog.partitions.errors import InvalidCallError, UnknownTopicOrPartitionError
from tests.unit.cluster_harness import LiveCluster

GROUPS = {
    "topics": Topics,
    "groups": Groups,
    "transactions": Transactions,
    "brokers": Brokers,
    "quorum": Quorum,
    "catalog": Catalog,
}


def methods() -> Iterator[tuple[str, object]]:
    for door in (Cluster, *GROUPS.values()):
        for name, method in inspect.getmembers(door, callable):
            # ``absent`` is a method of a bridge that is not installed.
            if not name.startswith("_") and method.__name__ != "absent":
                yield f"{door.__name__}.{name}", method


def test_every_method_names_its_arguments_and_says_what_it_does() -> None:
    """The exception is the options of a stream, which are those of its format, as Spark's own ``load``
    takes them.
    """
    hidden = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, method in methods():
        parameters = inspect.signature(method).parameters.values()  # type: ignore[arg-type]
        unnamed = [str(one) for one in parameters if one.kind in hidden]
        streams = name in ("Cluster.for_each_batch", "Cluster.for_each_live_batch")
        assert unnamed == (["**options: 'object'"] if streams else []), name
        assert inspect.getdoc(method), name


def test_no_method_shows_what_only_tests_and_measurements_replace() -> None:
    shown = {parameter for _, method in methods() for parameter in inspect.signature(method).parameters}  # type: ignore[arg-type]
    assert shown & {"clock", "new_id", "opener", "prober"} == set()


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_is_where_it_says_and_shows_how_it_is_used(name: str) -> None:
    assert Core.__annotations__[name] == GROUPS[name].__name__
    examples = [line.split("(")[0] for line in (inspect.getdoc(GROUPS[name]) or "").splitlines()]
    used = [line.split(".")[-1] for line in examples if f"cluster.{name}." in line]
    assert used
    assert [one for one in used if not hasattr(GROUPS[name], one)] == []


def test_parameters_of_reads_and_tails_have_the_defaults_of_their_options() -> None:
    for method, options in ((Client.read, ReadQuery), (Client.plan_read, ReadQuery), (Client.tail, TailOptions)):
        taken = inspect.signature(method).parameters
        defaults = {one.name: one.default for one in fields(options) if one.init and one.name != "topics"}
        assert {name: taken[name].default for name in defaults} == defaults


@pytest.mark.parametrize("method", ["append", "produce", "append_batches", "records", "transaction.append"])
def test_a_call_with_the_data_before_the_topic_fails_and_names_the_order(tmp_path: Path, method: str) -> None:
    cluster = LiveCluster(tmp_path).cluster
    door, _, name = method.rpartition(".")
    with cluster.transactions.begin("x") as transaction, pytest.raises(InvalidCallError) as refused:
        getattr(transaction if door else cluster, name)({0: []}, "t")
    assert str(refused.value) == (
        f"{name} takes the topic first, then the data: {name}('t', ...); the first argument here is a dict"
    )


@pytest.mark.parametrize("given", [str, {"n": "int"}, 7, ["n INT"]])
def test_a_value_that_declares_no_type_is_refused_with_its_repr(given: Any) -> None:
    with pytest.raises(InvalidCallError, match=f"{re.escape(repr(given))} does not declare a type: give DDL"):
        declared(given)


UNEXPECTED = "got an unexpected keyword argument"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda of: of.verify(deeep=True), f"cluster.verify() {UNEXPECTED} 'deeep'; did you mean 'deep'?"),
        (
            lambda of: of.topics.create("x", partition=1),
            f"cluster.topics.create() {UNEXPECTED} 'partition'; did you mean 'partitions'?",
        ),
        (
            lambda of: of.append("t", None, ky="a"),
            f"cluster.append() {UNEXPECTED} 'ky'; did you mean 'key'?",
        ),
        (lambda of: of.brokers.fence(), "cluster.brokers.fence() missing a required argument: 'brokers'"),
    ],
)
def test_a_wrong_argument_is_refused_with_the_method_as_users_call_it(
    tmp_path: Path, call: Callable[[Cluster], object], message: str
) -> None:
    with pytest.raises(TypeError) as refused:
        call(LiveCluster(tmp_path).cluster)
    assert str(refused.value) == message


@pytest.mark.parametrize("door", [Cluster.open, Cluster.format])
def test_swapped_arguments_are_refused_with_the_order(door: Callable[..., object]) -> None:
    with pytest.raises(
        InvalidCallError, match=r'not of type object: .* as in Cluster.open\("cluster.toml", spark\)'
    ):
        door(object(), "cluster.toml")


def test_a_pattern_as_a_topic_is_refused_with_the_argument_for_patterns(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic("trips")
    with pytest.raises(UnknownTopicOrPartitionError, match=r"'tr\*' does not exist; .* pattern='tr\.\*'"):
        live.cluster.plan_read("tr*")
