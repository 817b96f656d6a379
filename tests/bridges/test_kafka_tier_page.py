"""The commands of the page about a Kafka cluster's tier, on segments of real brokers that no longer exist."""

from __future__ import annotations

import re
import shlex
from contextlib import closing
from pathlib import Path

import pytest

from stratalog.jobs.main import JOBS, job_of
from tests.bridges.kafka_tier_data import MAIN, Tier, real
from tests.kafka.mirrored import new_cluster
from tests.pages import ROOT

pytestmark = real
TEXT = (ROOT / "docs" / "kafka-tier.md").read_text(encoding="utf-8").replace("\\\n", "")
COMMANDS = [shlex.split(line) for line in re.findall(r"^    (stratalog .*)$", TEXT, re.MULTILINE)]


def here(words: list[str]) -> list[str]:
    """The arguments for the tier of the test; its metadata replaces the brokers."""
    data = Tier(MAIN)
    metadata = f"{data.path}/remote-log-metadata"
    found = " ".join(words).replace("--bootstrap kafka-1:9092", f"--metadata {metadata}")
    found = found.replace("--from kafka-1:9092", f"--offline {metadata}")
    found = found.replace("s3://backup/kafka-logs", metadata).replace("s3://kafka-tier", f"{data.path}/tier")
    found = re.sub(r" --(tier-)?prefix \S+", "", found).replace("--layout aiven", "--layout local")
    prefix = "--prefix" if words[0] == "kafka_tier" else "--tier-prefix"
    return [*re.sub(r"\btrips\b", "plain", found).split(), prefix, data.options.prefix]


def test_every_command_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {words[1] for words in COMMANDS} == {"kafka_tier", "mirror", "compare"}
    with closing(new_cluster(tmp_path)) as cluster:
        for words in COMMANDS:
            job, *rest = here(words[1:])
            assert job in JOBS
            more = [] if job == "kafka_tier" else ["--cluster", str(tmp_path / "cluster.toml")]
            assert job_of(job)([*rest, *more]) == 0, words
        ends = {row["partition"]: row["log_end"] for row in cluster.describe("plain").rows}
    assert ends == {0: 2430, 1: 2040}
    assert (tmp_path / "day.parquet").is_file()
