"""A cluster of ours in which topics of a Kafka are mirrored, and jobs on it that are killed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from stratalog import Cluster
from tests.kafka.kafka_clients import wait_until

_ROOT = Path(__file__).resolve().parents[2]


def new_cluster(folder: Path) -> Cluster:
    """Two brokers below ``folder``, which is there; its file is ``cluster.toml``."""
    for root in ("b1", "b2"):
        (folder / root).mkdir()
    brokers = "".join(f'[[brokers]]\nid = {n}\nlog_dir = "b{n}"\n' for n in (1, 2))
    (folder / "cluster.toml").write_text(f'[cluster]\nid = "c"\nvoters = [1]\n{brokers}')
    made = Cluster.format(folder / "cluster.toml")
    made.topics.alter_configs(None, {"offsets.topic.replication.factor": 1, "offsets.topic.num.partitions": 1})
    return made


def killed(arguments: Sequence[str], has_begun: Callable[[], bool], after_s: float) -> bool:
    """Start a job of ``stratalog``, and kill it (kill -9) ``after_s`` seconds after it has begun to do something;
    whether it was still alive then."""
    job, *given = arguments
    command = [sys.executable, "-m", f"stratalog.jobs.{job}", *given]
    process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: process.poll() is not None or has_begun(), every_s=0.05)
        time.sleep(after_s)
        return process.poll() is None
    finally:
        process.kill()
        process.wait()
