"""A cluster of the engine that mirrors topics of a Kafka, and jobs on it that are killed."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from stratalog import Cluster
from tests.kafka.kafka_clients import wait_until

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "confluent_kafka.admin",
        "stratalog.bridges.export.kafka_target",
        "stratalog.bridges.mirror.kafka_source",
        "stratalog.bridges.jobs.export",
        "stratalog.bridges.jobs.mirror",
        "tests.kafka.mirrored",
    ]
)
"""Jobs are forked from a process that has imported all modules: otherwise their start would take longer than the
killed work."""


def new_cluster(folder: Path) -> Cluster:
    """Two brokers below the existing ``folder``; the file is ``cluster.toml``."""
    for root in ("b1", "b2"):
        (folder / root).mkdir()
    brokers = "".join(f'[[brokers]]\nid = {n}\nlog_dir = "b{n}"\n' for n in (1, 2))
    (folder / "cluster.toml").write_text(f'[cluster]\nid = "c"\nvoters = [1]\n{brokers}')
    made = Cluster.format(folder / "cluster.toml")
    made.topics.alter_configs(None, {"offsets.topic.replication.factor": 1, "offsets.topic.num.partitions": 1})
    return made


def killed(arguments: Sequence[str], has_begun: Callable[[], bool], after_s: float) -> bool:
    """Start a job of ``stratalog`` as a process, and kill it (kill -9) ``after_s`` seconds after it has begun its
    work. Returns whether it was still alive then."""
    process = _FORKS.Process(target=_run, args=arguments)
    process.start()
    try:
        wait_until(lambda: not process.is_alive() or has_begun(), every_s=0.05)
        time.sleep(after_s)
        return process.is_alive()
    finally:
        process.kill()
        process.join()


def _run(job: str, *arguments: str) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(silence, output)
    importlib.import_module(f"stratalog.jobs.{job}").main(arguments)
