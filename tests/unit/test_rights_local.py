"""Rights on a real file system: a process without privileges reads a cluster on read-only folders."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.cluster_harness import LiveCluster
from tests.unit.without_privileges import program, run_without_privileges

ACTS = """
    "describe": driver.describe,
    "quorum": driver.quorum.describe,
    "fetch": lambda: driver.fetch("t", 0, 3),
    "fetch of tiered records": lambda: driver.fetch("t", 0, 0),
    "tail": lambda: next(iter(driver.tail("t", start=3))),
    "plan_read": lambda: driver.plan_read("t"),
    "lag": lambda: driver.groups.lag("g"),
    "verify": lambda: driver.verify(deep=True),
    "drill": driver.drill,
    "tier --dry-run": lambda: driver.tier(dry_run=True),
    "append": lambda: driver.append_batches("t", {0: [batch(["x"])]}),
    "commit": lambda: driver.groups.commit("g", {("t", 0): 2}),
    "create_topic": lambda: driver.topics.create("n"),
    "tier": driver.tier,
"""
READS = 10


@contextmanager
def modes(root: Path, folders: int, files: int) -> Iterator[None]:
    """Set the modes of everything below the root during the block."""
    found = [Path(folder) for folder, _, _ in os.walk(root)]
    for folder in found:
        for file in folder.iterdir():
            if file.is_file():
                file.chmod(files)
        folder.chmod(folders)
    try:
        yield
    finally:
        for folder in found:
            folder.chmod(0o755)


def cluster(folder: Path) -> LiveCluster:
    live = LiveCluster(folder, on_disk=True)
    live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    live.tiered()
    live.fill("abc")
    live.cluster.groups.commit("g", {("t", 0): 1})
    for _ in range(2):
        live.cluster.tier().raise_for_failures()
        live.cluster.retain().raise_for_failures()
    live.fill("de")
    return live


@pytest.mark.slow
def test_a_caller_who_may_not_write_reads_everything_and_learns_what_is_missing(tmp_path: Path) -> None:
    live = cluster(tmp_path)
    with live.unchanged(), modes(tmp_path, 0o555, 0o444):
        answer: dict[str, str] = json.loads(run_without_privileges(program(ACTS), [str(live.file)]))
    reads, writes = dict([*answer.items()][:READS]), dict([*answer.items()][READS:])
    assert set(reads.values()) == {""}, reads
    for write, folder in {"append": "/t-", "commit": "__consumer_offsets-", "create_topic": ".claim"}.items():
        assert "CLUSTER_AUTHORIZATION_FAILED: cannot create" in writes[write].replace(
            "metadata epoch 3 cannot be claimed: ", ""
        ), writes
        assert folder in writes[write]
        assert str(tmp_path) in writes[write]
        assert "give this user the right to create there" in writes[write]
    assert "t-0: CLUSTER_AUTHORIZATION_FAILED: cannot create" in writes["tier"]


@pytest.mark.slow
def test_the_log_of_a_remote_table_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    """Delta writes the file, but the error is stratalog's."""
    live = cluster(tmp_path)
    (log,) = tmp_path.rglob("_delta_log")
    with modes(log, 0o555, 0o444):
        answer: dict[str, str] = json.loads(run_without_privileges(program(ACTS), [str(live.file)]))
    assert "t-0: CLUSTER_AUTHORIZATION_FAILED: " in answer["tier"], answer["tier"]
    assert "_delta_log" in answer["tier"]
    live.cluster.tier().raise_for_failures()
