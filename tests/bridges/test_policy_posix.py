"""The printed script for folders, on a real file system: its users can read and append, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cluster_harness import TIERED, LiveCluster
from tests.unit.without_privileges import program

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="it takes several users"),
    pytest.mark.skipif(shutil.which("setfacl") is None, reason="apt-get install acl"),
]
USERS = {"reader": 4711, "producer": 4712, "operator": 4713}
"""The users, each with a group of the same number. The roots belong to root."""
ACTS = """
    "describe": lambda: driver.describe("t"),
    "fetch": lambda: driver.fetch("t", 0, 2),
    "fetch of tiered records": lambda: driver.fetch("t", 0, 0),
    "verify": lambda: driver.verify("t", deep=True),
    "lag": lambda: driver.groups.lag("g"),
    "append": lambda: driver.append_batches("t", {0: [batch(["x"])]}),
    "commit": lambda: driver.groups.commit("g", {("t", 0): 2}),
    "tier": lambda: driver.tier("t"),
    "retain": lambda: driver.retain("t"),
    "fetch of another topic": lambda: driver.fetch("other", 0, 0),
    "append to another topic": lambda: driver.append_batches("other", {0: [batch(["x"])]}),
"""
READS = {"describe", "fetch", "fetch of tiered records", "verify", "lag"}
APPENDS = {*READS, "append", "commit"}
MAY = {"reader": READS, "producer": {*APPENDS, "retain"}, "operator": {*APPENDS, "tier", "retain"}}
"""A file system cannot allow creation without deletion, so on a file system a producer could run retention."""


@pytest.fixture(scope="module")
def live() -> Iterator[LiveCluster]:
    with tempfile.TemporaryDirectory() as folder:  # other users can reach this folder
        os.chmod(folder, 0o755)
        old = os.umask(0o077)
        try:
            live = LiveCluster(Path(folder), on_disk=True)
            live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "1"})
            for topic in ("t", "other"):
                live.cluster.topics.create(topic, partitions=1, replication_factor=3, configs=TIERED)
            live.fill("ab")
            live.fill("ab", "other")
            live.cluster.groups.commit("g", {("t", 0): 1})
            for _ in range(2):
                live.cluster.tier().raise_for_failures()
                live.cluster.retain().raise_for_failures()
            live.fill("cd")
            live.file.chmod(0o644)
            for role, user in USERS.items():
                script = live.cluster.policy(role, "t", storage="posix")
                subprocess.run(["sh", "-c", script], env={**os.environ, "GROUP": str(user)}, check=True)
            yield live
        finally:
            os.umask(old)


def as_user(user: int, program: str, *arguments: str) -> str:
    done = subprocess.run(
        [
            *("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"),
            *(sys.executable, "-c", program, *arguments),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("role", USERS)
def test_a_role_does_its_work_and_nothing_else(live: LiveCluster, role: str) -> None:
    answer: dict[str, str] = json.loads(as_user(USERS[role], program(ACTS), str(live.file)))
    assert {name for name, what in answer.items() if not what} == MAY[role], answer
    for name, what in answer.items():
        if name not in MAY[role]:
            assert "CLUSTER_AUTHORIZATION_FAILED: " in what, (name, what)
            assert str(live.folder) in what, (name, what)
    live.driver().verify(deep=True).raise_for_failures()
