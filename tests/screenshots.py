"""``python -m tests.screenshots``: write the pictures of the documentation, of a real cluster with a broker away,
into ``docs/images``.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from stratalog import Cluster
from stratalog.bridges.page.report import StatePage, report
from stratalog.engine.driver.report import Value, utc_text
from stratalog.partitions.clock import SystemClock
from tests.browser import browser
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import TIERED
from tests.unit.harness import batch

IMAGES = Path(__file__).resolve().parents[1] / "docs/images"
MOST_BYTES = 200_000
OPEN = "document.querySelector('nav').hidden = true; document.querySelectorAll('#partitions .open')[12].click();"
OPEN += "document.getElementById('tiers').scrollIntoView()"
PICTURES: dict[str, tuple[dict[str, Any], str]] = {
    "report-light": ({"height": 880}, ""),
    "report-dark": ({"height": 1180, "dark": True}, OPEN),
    "report-phone": ({"height": 844, "width": 390}, ""),
}
"""The window and a script to run in it, keyed by the name of the picture."""


def town(folder: Path) -> Cluster:
    """Three brokers; topics that are tiered and not tiered, with a long history and with none; groups."""
    for root in ("b1", "b2", "b3", "remote"):
        (folder / root).mkdir()
    brokers = "".join(f'[[brokers]]\nid = {n}\nrack = "{"abc"[n - 1]}"\nlog_dir = "b{n}"\n' for n in (1, 2, 3))
    file = folder / "cluster.toml"
    file.write_text(f'[cluster]\nid = "flights"\nremote = "remote"\nvoters = [1]\n{brokers}')
    cluster, chance = Cluster.format(file, keeps_short=False), random.Random(1)
    now_us = SystemClock().now_ms() * 1000
    small = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
    cluster.topics.alter_configs(None, {**small, "health.log.dir.max.used.ratio": "1"})
    tiered = {**TIERED, "local.retention.bytes": "-1"}
    topics = {
        "flights": (6, tiered),
        "payments": (4, {**tiered, "min.insync.replicas": "2"}),
        "clicks": (8, {"retention.ms": "259200000"}),
        "audit": (2, {"retention.ms": "-1"}),
    }
    for name, (partitions, configs) in topics.items():
        cluster.topics.create(name, partitions=partitions, replication_factor=3, configs=configs)
    for turn in range(6):
        for name, (partitions, _) in topics.items():
            given = {
                partition: [batch([chance.randbytes(40).hex()] * chance.randint(40, 400), now_us)]
                for partition in range(partitions)
            }
            cluster.append_batches(name, given).raise_for_failures()
        if turn == 2:
            cluster.tier().raise_for_failures()
            cluster.topics.alter_configs("flights", {"local.retention.bytes": "0"})
            cluster.retain().raise_for_failures()
            cluster.topics.alter_configs("flights", {"local.retention.bytes": "-1"})
        if turn == 4:
            cluster.tier(["flights"]).raise_for_failures()
            cluster.topics.delete_records("flights", {0: 150, 1: 90}).raise_for_failures()
    for group, topic, at in (("billing", "payments", 300), ("dashboard", "clicks", 500), ("lake", "flights", 40)):
        partitions = topics[topic][0]
        cluster.groups.commit(group, {(topic, p): at for p in range(partitions)}).raise_for_failures()
    cluster.maintain(only=["replicate", "elect", "merge"]).raise_for_failures()
    return cluster


def history(now_ms: int, hours: int = 48) -> list[dict[str, Value]]:
    """Rows as ``Cluster.history`` returns them, for two days of a busier cluster."""
    chance, rows = random.Random(2), []
    ends, tiered = dict.fromkeys(("flights", "payments", "clicks"), 0), {"flights": 0, "payments": 0}
    for step in range(hours * 4):
        at = now_ms - (hours * 4 - step) * 900_000
        busy = 1.2 + math.sin(step / 96 * 2 * math.pi)
        added = {name: int(12_000 * busy * chance.uniform(0.7, 1.2)) for name in ends}
        ends = {name: end + added[name] for name, end in ends.items()}
        totals = {"copied_bytes": 178 * sum(added.values())}
        totals |= {f"{name}/copied_bytes": 178 * more for name, more in added.items()}
        if step % 8 == 7:
            before, tiered = tiered, {name: ends[name] - int(added[name] * 0.9) for name in tiered}
            uploaded = {name: 95 * (tiered[name] - before[name]) for name in tiered}
            totals |= {"uploaded_bytes": sum(uploaded.values()), "deleted_bytes": sum(uploaded.values()) // 3}
            totals |= {f"{name}/uploaded_bytes": size for name, size in uploaded.items()}
        totals |= {f"{name}/log_end": end for name, end in ends.items()}
        totals |= {f"{name}/remote_end": end for name, end in tiered.items()}
        totals |= {f"{name}/backlog_bytes": 90 * (ends[name] - tiered[name]) for name in tiered}
        failed = step in (150, 151)
        rows.append(
            {
                "time": utc_text(at),
                "operation": "maintain",
                "phase": "ended",
                "outcome": "failed" if failed else "done",
                "user": "airflow",
                "host": "etl-1",
                "job": "upkeep",
                "run": f"{step:04}",
                "cluster": "flights",
                "version": "0.1.0",
                "arguments": "{}",
                "totals": json.dumps(totals),
                "notes": json.dumps(
                    ["broker 3: BROKER_NOT_AVAILABLE: its root does not answer"] if failed else []
                ),
                "duration": int(6_000 * chance.uniform(0.6, 1.5)),
            }
        )
    return rows


def picture_page(folder: Path) -> StatePage:
    """The page of ``town`` without its third broker, in its own folder."""
    cluster = town(folder)
    (folder / "b3").rename(folder / "away")
    (folder / "b3").mkdir()
    page = with_ports(report, ports_of(cluster))(lambda: history(SystemClock().now_ms()))
    return replace(page, html=page.html.replace(str(folder), "/srv"))


def main() -> None:
    """Write the pictures. Raises: AssertionError if one is too large."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, browser() as window:
        file = Path(scratch, "report.html")
        picture_page(Path(scratch)).save(file)
        for name, (how, script) in PICTURES.items():
            window.look(**how)
            window.open(file)
            window.run(script)
            picture = window.screenshot()
            assert len(picture) <= MOST_BYTES, f"{name}: {len(picture):,} bytes"
            Path(IMAGES, f"{name}.png").write_bytes(picture)
            print(f"docs/images/{name}.png: {len(picture):,} bytes")


if __name__ == "__main__":
    main()
