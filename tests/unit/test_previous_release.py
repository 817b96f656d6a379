"""Two versions and one cluster (docs/format.md, "Compatibility with later versions")."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bare_python import installed, run, wheel_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
BEFORE_THE_FIRST_RELEASE = "e421ad9c5175d66847e7c04988de8f675499b8fb"
"""The commit that represents the previous release until there is a tag ``v*``: the first one with the current
public API.
"""

TURN = """
import json, sys
import pyarrow as pa
from stratalog import Cluster

turn = int(sys.argv[1])
TOPICS = ("plain", "tiered", "cities", "ledger")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

def batch(*values, key=None):
    size = len(values)
    return pa.RecordBatch.from_pydict({
        "timestamp": pa.array([None] * size, pa.timestamp("us", tz="UTC")),
        "key": pa.array([key] * size, pa.binary()),
        "value": pa.array([value.encode() for value in values], pa.binary()),
        "headers": pa.array([[{"key": "turn", "value": str(turn).encode()}]] * size, HEADERS),
    })

def held(cluster):
    found = {}
    for name in TOPICS:
        [position] = cluster.offsets(name, "earliest").values()
        position, rows = position.offset, []
        while True:
            fetched = cluster.fetch(name, 0, position, isolation="read_committed")
            rows += [str(row) for row in fetched.records.to_pylist()]
            if fetched.next_offset == position:
                break
            position = fetched.next_offset
        found[name] = rows
    found["group"] = sorted((topic, n, at.offset) for (topic, n), at in cluster.groups.committed("g").items())
    found["producers"] = [str(row["transactional_id"]) for row in cluster.transactions.list().rows]
    return found

if turn == 0:
    cluster = Cluster.format("cluster.toml")
    for log in ("offsets.topic", "transaction.state.log"):
        cluster.topics.alter_configs(None, {f"{log}.num.partitions": "1", f"{log}.replication.factor": "2"})
    tiered = {"remote.storage.enable": "true", "segment.bytes": "1", "local.retention.bytes": "0"}
    for name, configs in zip(TOPICS, (
        {"segment.merge.min.files": "2"},
        {**tiered, "file.delete.delay.ms": "0", "retention.ms": "-1"},
        {"cleanup.policy": "snapshot"},
        {},
    )):
        cluster.topics.create(name, replication_factor=2, configs=configs)
    before = None
else:
    cluster = Cluster.open("cluster.toml")
    before = held(cluster)
    assert cluster.verify(deep=True).failures == []
    again = cluster.append_batches(
        "plain", {0: [batch("other")]}, producer="loader", sequence=turn - 1, on_changed_replay="accept"
    )
    assert [row["outcome"] for row in again.raise_for_failures().rows] == ["duplicate"]
    cluster.transactions.abort(f"open-{turn - 1}").raise_for_failures()

cluster.append_batches("plain", {0: [batch("x", "y")]}, producer="loader", sequence=turn).raise_for_failures()
cluster.append_batches("plain", {0: [batch(f"small {turn}")]}).raise_for_failures()
for _ in range(2):
    cluster.append_batches("tiered", {0: [batch(f"t{turn}")]}).raise_for_failures()
cluster.append_batches("cities", {0: [batch(f"{turn}", key=b"Oslo")]}).raise_for_failures()
with cluster.transactions.begin("loader") as transaction:
    transaction.append_batches("ledger", {0: [batch(f"kept {turn}")]})
    transaction.commit_offsets("g", {("plain", 0): turn})
left_open = cluster.transactions.begin(f"open-{turn}", timeout_ms=900_000)
left_open.append_batches("ledger", {0: [batch(f"open {turn}")]})
for job in (cluster.replicate, cluster.merge, cluster.tier, cluster.retain, cluster.retain):
    job().raise_for_failures()
cluster.snapshot(by_hand=True).raise_for_failures()
cluster.elect("plain", [0], leader=turn % 2 + 1)
print(json.dumps({"before": before, "after": held(cluster)}))
"""


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of the previous version, which is built from this repository's history."""
    tag = git("describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^")
    version = tag or git("rev-parse", "--verify", "--quiet", f"{BEFORE_THE_FIRST_RELEASE}^{{commit}}")
    if version is None:
        pytest.skip("no history of git, or one without an earlier version: nothing to install beside this one")
    folder = tmp_path_factory.mktemp("previous")
    (folder / "source").mkdir()
    archive = subprocess.run(["git", "archive", version], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", folder / "source"], input=archive, check=True)
    return installed(wheel_of(folder / "source", folder), folder / "venv")


def git(*argv: str) -> str | None:
    """The output of a git command on this checkout; None without git, a history, or that object."""
    try:
        done = subprocess.run(
            ["git", *argv],
            cwd=ROOT,
            env=os.environ | {"GIT_CEILING_DIRECTORIES": str(ROOT.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@pytest.mark.nightly
def test_this_version_continues_with_what_the_previous_wrote_which_refuses_what_has_grown(
    previous: Path, tmp_path: Path
) -> None:
    """The previous version begins, and this one continues: it finds the other's data, byte for byte where it
    moved, takes no append twice, ends the open transaction, and writes files of every kind. Partitions of the
    metadata have one more field since: the previous version refuses them by name.
    """
    for root in ("b1", "b2", "remote"):
        (tmp_path / root).mkdir()
    brokers = "".join(f'[[brokers]]\nid = {n}\nlog_dir = "b{n}"\n' for n in (1, 2))
    text = f'[cluster]\nid = "c"\nremote = "remote"\nvoters = [1]\ncache = "cache"\n{brokers}'
    (tmp_path / "cluster.toml").write_text(text)
    (tmp_path / "turn.py").write_text(TURN)
    present = Path(sys.executable)
    left = None
    for turn, python in enumerate((previous, present, present)):
        answer = json.loads(run(python, "turn.py", str(turn), folder=tmp_path).stdout.splitlines()[-1])
        assert answer["before"] == left
        left = answer["after"]
        if turn == 1:
            refused = run(previous, "turn.py", "2", folder=tmp_path, status=1).stderr
            assert "not a record of a metadata snapshot" in refused
    assert left is not None
    assert [len(left[topic]) for topic in ("plain", "tiered", "ledger")] == [9, 6, 3]
