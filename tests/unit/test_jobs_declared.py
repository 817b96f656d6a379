"""The command line of an operation is the one that its method declares."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

import pytest

from stratalog import Cluster, Report
from stratalog.engine.cluster.brokers import Brokers
from stratalog.engine.cluster.jobs import Jobs
from stratalog.engine.cluster.quorum import Quorum
from stratalog.engine.cluster.transactions import Transactions
from stratalog.jobs.declared import Parameter, add_parameter, call, declared
from stratalog.jobs.main import job_of

DOORS: dict[str, Any] = {
    "jobs.Jobs": Jobs,
    "brokers.Brokers": Brokers,
    "quorum.Quorum": Quorum,
    "transactions.Transactions": Transactions,
}
OPERATIONS = {
    *(f"jobs.Jobs.{name}" for name in ("elect", "replicate", "merge", "bootstrap", "heal", "retain", "vacuum")),
    *(f"jobs.Jobs.{name}" for name in ("maintain", "tier", "snapshot", "history")),
    *(f"quorum.Quorum.{name}" for name in ("describe", "snapshot", "replace_voter", "add_voter", "remove_voter")),
    *(f"brokers.Brokers.{name}" for name in ("list", "add", "fence", "unfence", "decommission")),
    *(f"transactions.Transactions.{name}" for name in ("list", "describe", "abort", "finish", "find_hanging")),
}


@pytest.mark.parametrize("method", sorted(OPERATIONS))
def test_the_source_declares_what_the_method_takes(method: str) -> None:
    """And explains each parameter, and no other."""
    door, _, name = method.rpartition(".")
    function = getattr(DOORS[door], name)
    taken = {
        key: one for key, one in inspect.signature(function).parameters.items() if key not in ("self", "check")
    }
    found = declared(method)
    assert [one.name for one in found.parameters] == [*taken]
    for one in found.parameters:
        default = taken[one.name].default
        assert (one.default is None) == (default is inspect.Parameter.empty)
        assert one.text or one.name == "by_hand", one.name
    args = (inspect.getdoc(function) or "").partition("Args:\n")[2].partition("\n\n")[0].splitlines()
    explained = {line.strip().split(":")[0] for line in args if line.startswith("    ") and line[4] != " "}
    assert explained <= {*taken}
    assert found.text
    assert "stratalog.engine" not in found.text


@pytest.mark.parametrize(
    ("parameter", "words", "value"),
    [
        ("dry_run: bool = False", ["--dry-run"], True),
        ("groups: bool = True", ["--no-groups"], False),
        ("budget_s: float | None = None", ["--budget", "5m"], 300.0),
        ("older_than_ms: int = 86400000", ["--older-than", "1h"], 3_600_000),
        ("throttle_bytes_per_s: float | None = None", ["--throttle", "1KiB"], 1024),
        ("memory_bytes: int = MEMORY_BYTES", ["--memory-bytes", "1MB"], 1_000_000),
        ("keep: Literal['remote', 'brokers'] | None = None", ["--keep", "remote"], "remote"),
        ("topics: TopicNames = None", ["--topics", "a,b"], ["a", "b"]),
        ("brokers: Sequence[int] | int", ["2,3"], [2, 3]),
        ("partitions: Sequence[int] | None = None", ["--partitions", "0"], [0]),
        ("leader: int | None = None", ["--leader", "0"], 0),
        ("group: str", ["g"], "g"),
    ],
)
def test_a_parameter_is_written_by_its_type_and_its_unit(parameter: str, words: list[str], value: object) -> None:
    name, _, rest = parameter.partition(": ")
    annotation, _, default = rest.partition(" = ")
    one = Parameter(name, annotation, default or None, "text")
    parser = argparse.ArgumentParser()
    add_parameter(parser, one)
    assert vars(parser.parse_args(words)) == {name: value}


def test_a_call_passes_what_was_given_by_its_name_and_takes_the_report_with_its_failures() -> None:
    def act(topics: object = None, *, due: bool = False, older_than_ms: int = 5, check: bool = True) -> Report:
        return Report("act", [{"topics": str(topics), "due": due, "older_than_ms": older_than_ms, "check": check}])

    given = argparse.Namespace(topics=["a"], due=False, older_than_ms=None, json=True, cluster="c")
    (row,) = call(act, given, due=True).rows
    assert row == {"topics": "['a']", "due": True, "older_than_ms": 5, "check": False}


def test_every_operation_that_is_declared_has_a_job() -> None:
    for method in OPERATIONS:
        _, door, name = method.split(".")
        assert job_of(name if door == "Jobs" else door.lower()).description
        assert hasattr(Cluster, name) or door != "Jobs"
