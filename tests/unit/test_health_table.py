"""The table of findings in the documentation, row by row: break the cluster, and ``health``, the page and the
metrics show the finding; run exactly its command, and ``health`` is clean. A missing mount, or a consumer that
does not run, is first repaired by hand, as the finding says.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stratalog.engine.health.finding import KINDS, HealthFinding, Severity
from stratalog.jobs.run import Job
from tests.unit.cluster_harness import fence
from tests.unit.health_breakages import (
    abandoned,
    another,
    away,
    behind,
    beyond_group,
    blocked,
    configured,
    cut,
    cut_off_compaction,
    damaged_group,
    erased,
    expired,
    flipped,
    flipped_everywhere,
    folder_gone,
    full,
    lagging,
    late_group,
    long_ago,
    lost,
    lost_leader,
    not_uploaded,
    noticed,
    object_gone,
    offline,
    optimized,
    out_of_isr,
    remote,
    remote_away,
    remote_empty,
    skewed,
    stopped_group,
    uncompacted,
    unnamed,
    unread_group,
    unregistered,
    unscrubbed,
    uploads,
    wiped,
    written,
)
from tests.unit.health_harness import Patient
from tests.unit.test_layers import ROOT


@dataclass
class Case:
    """One way to break a cluster."""

    kind: str
    """The row of the table."""
    broken: Callable[[Patient], Callable[[], object] | None]
    """Breaks the cluster; returns the manual repair that precedes the command, if there is any."""
    shown: str = ""
    """The finding that includes it, if it is not shown separately."""
    do: str = ""
    """A part of the command."""
    tiered: bool = False
    then: int = 0
    """The number of further findings after the command, one after the other, each with its own command."""
    of_cluster: dict[str, Any] = field(default_factory=dict)


VOTERS = {"voters": (1, 2, 3)}
CASES = {
    "the only voter": Case("current-leader", away(1), do="maintain"),
    "a voter's mount": Case(
        "offline-voter", away(3), shown="OfflineLogDirectoryCount", do="maintain", of_cluster=VOTERS
    ),
    "a voter's disk": Case("offline-voter", wiped, do="quorum replace-voter 3", of_cluster=VOTERS),
    "the only replica's mount": Case("OfflinePartitionsCount", offline, shown="OfflineLogDirectoryCount"),
    "the only replica's mount, noticed": Case(
        "OfflinePartitionsCount", noticed(offline), shown="OfflineLogDirectoryCount", do="maintain"
    ),
    "all members' disks": Case("OfflinePartitionsCount", lost_leader, do="elect --unclean", then=1),
    "below min ISR": Case("UnderMinIsrPartitionCount", configured(min_insync_replicas="3"), do="replicate"),
    "out of the ISR": Case("UnderReplicatedPartitions", out_of_isr, do="replicate"),
    "a follower's mount": Case("UnderReplicatedPartitions", away(3), shown="OfflineLogDirectoryCount"),
    "a lagging follower": Case("MaxLag", lagging, do="replicate"),
    "a file that is cut": Case("damaged-replicas", cut, do="heal"),
    "a flipped bit, and verify": Case("damaged-replicas", flipped, do="heal"),
    "flipped bits everywhere": Case("damaged-replicas", flipped_everywhere, do="heal"),
    "a mount": Case("OfflineLogDirectoryCount", away(2), do="maintain"),
    "a mount, noticed": Case("OfflineLogDirectoryCount", noticed(away(2)), do="bootstrap 2"),
    "a folder, noticed": Case("OfflineLogDirectoryCount", noticed(folder_gone(2)), do="mkdir", then=1),
    "another root": Case("OfflineLogDirectoryCount", another, do="bootstrap 3"),
    "fenced by hand": Case("FencedBrokerCount", lambda it: fence(it.live, 3), do="brokers unfence", then=1),
    "not in the file": Case("FencedBrokerCount", unnamed, do="brokers decommission 4", of_cluster={"brokers": 4}),
    "not registered": Case("ActiveBrokerCount", unregistered, do="format"),
    "a clock": Case("clock-skew", skewed, do="timedatectl"),
    "a file in the way": Case("read-only-log-dir", blocked, do="rm"),
    "a full disk": Case("log-dir-used-ratio", full, do="maintain --only merge,retain,vacuum"),
    "no uploads": Case("RemoteCopyErrorsPerSec", uploads("tier --topics t", "tier"), do="tier", tiered=True),
    "no uploads by maintain": Case(
        "RemoteCopyErrorsPerSec", uploads("maintain --only tier", "maintain --only tier"), do="tier", tiered=True
    ),
    "the remote tier's mount": Case("offline-remote-tier", remote(remote_away), do="maintain", tiered=True),
    "the remote tier's mount, noticed": Case(
        "offline-remote-tier",
        remote(remote_away, "tier", "retain", "maintain", "vacuum", "merge", "replicate", "tier", "verify"),
        do="maintain --only merge,replicate,retain,tier,vacuum",
        tiered=True,
        then=1,
    ),
    "no remote tier in its place": Case("offline-remote-tier", remote(remote_empty), do="maintain", tiered=True),
    "no remote tier in its place, noticed": Case(
        "offline-remote-tier",
        remote(remote_empty, "tier", "retain", "tier", "verify"),
        do="maintain --only retain,tier",
        tiered=True,
        then=1,
    ),
    "nobody uploads": Case("RemoteCopyLagBytes", not_uploaded, do="tier", tiered=True),
    "nobody compacts": Case("compaction-lag", uncompacted, do="compact --topics t"),
    "a compaction that was cut off": Case("compaction-lag", cut_off_compaction, do="compact --topics t"),
    "an erasure": Case("unfinished-erasure", erased, do="erase t"),
    "nobody deletes": Case("retention-lag", expired, do="retain"),
    "the leader's folder": Case("lost-log", lost(()), do="replicate"),
    "an older copy": Case("behind-remote", behind, do="replicate", tiered=True),
    "OPTIMIZE": Case("remote-table", optimized, do="heal", tiered=True),
    "a foreign append": Case("remote-table", written, do="python -c", tiered=True),
    "a slow group": Case("records-lag-max", late_group, do="groups describe g"),
    "a group beyond the end": Case("committed-beyond-log-end", beyond_group, do="groups describe g"),
    "a group that stopped": Case("records-lag-max", stopped_group, do="groups describe g"),
    "offsets out of reach": Case("state-unread", unread_group, shown="OfflineLogDirectoryCount"),
    "offsets damaged everywhere": Case("state-unread", damaged_group, do="heal"),
    "a dead transaction": Case("PartitionsWithLateTransactionsCount", abandoned, do="transactions finish"),
    "never maintained": Case("upkeep", long_ago(0), do="maintain"),
    "not maintained": Case("upkeep", long_ago(3), do="maintain"),
    "not scrubbed": Case("upkeep", unscrubbed, do="maintain --only scrub"),
    "an object that is gone": Case("upkeep-failing", object_gone, do="heal", tiered=True),
    "the remote tier was away": Case(
        "upkeep-failing",
        remote(remote_away, "maintain --only retain", back=True),
        do="maintain --only retain",
        tiered=True,
    ),
    **{
        f"the remote tier was away from {job}": Case(
            "upkeep-failing", remote(remote_away, f"{job} --topics t", back=True), do=do, tiered=True
        )
        for job, do in {
            **{job: f"maintain --only {job}" for job in ("merge", "replicate", "retain", "vacuum")},
            "verify": "verify",
        }.items()
    },
}


@pytest.mark.sample(18)
@pytest.mark.parametrize("name", CASES)
def test_the_command_of_a_finding_repairs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case = CASES[name]
    patient = Patient(tmp_path, capsys, **case.of_cluster)
    patient.monkeypatch = monkeypatch
    monkeypatch.setattr(Job, "confirm", lambda job, what: None)  # an operator confirms
    (patient.live.tiered if case.tiered else patient.live.topic)()
    patient.live.fill("abc")
    assert patient.job("maintain") == 0
    by_hand = case.broken(patient)
    found = patient.found()
    shown = case.shown or case.kind
    assert shown in found
    assert case.do in found[shown]["do"]
    assert case.kind in {shown, *re.findall(r"[\w-]+", found[shown]["affected"] or "")}
    if by_hand is not None:
        by_hand()
    patient.follow(found[shown])
    for _ in range(case.then):
        patient.follow(next(iter(patient.found().values())))
    assert patient.found() == {}


ALERTED = {
    "current-leader": "stratalog_up",
    "OfflinePartitionsCount": "stratalog_OfflinePartitionsCount",
    "UnderMinIsrPartitionCount": "stratalog_UnderMinIsrPartitionCount",
    "UnderReplicatedPartitions": "stratalog_UnderReplicatedPartitions",
    "MaxLag": "stratalog_replication_lag_seconds",
    "damaged-replicas": 'stratalog_findings{finding="damaged-replicas"}',
    "OfflineLogDirectoryCount": "stratalog_OfflineLogDirectoryCount",
    "FencedBrokerCount": "stratalog_FencedBrokerCount",
    "log-dir-used-ratio": "stratalog_log_dir_used_ratio",
    "offline-remote-tier": 'stratalog_findings{finding="offline-remote-tier"}',
    "RemoteCopyErrorsPerSec": 'stratalog_findings{finding="RemoteCopyErrorsPerSec"}',
    "RemoteCopyLagBytes": "stratalog_remote_copy_lag_seconds",
    "compaction-lag": 'stratalog_findings{finding="compaction-lag"}',
    "remote-table": 'stratalog_findings{finding="remote-table"}',
    "records-lag-max": "stratalog_records_lag_max_seconds",
    "committed-beyond-log-end": 'stratalog_findings{finding="committed-beyond-log-end"}',
    "PartitionsWithLateTransactionsCount": "stratalog_PartitionsWithLateTransactionsCount",
    "upkeep": "stratalog_scrub_lag_seconds",
    "upkeep-failing": 'stratalog_findings{finding="upkeep-failing"}',
}
NO_FIGURE = {
    *(
        "offline-voter",
        "ActiveBrokerCount",
        "clock-skew",
        "read-only-log-dir",
        "retention-lag",
        "unfinished-erasure",
        "behind-remote",
        "lost-log",
    ),
    "state-unread",
}
"""The kinds whose alert is that of ``stratalog_healthy``."""


def test_each_row_with_a_figure_has_an_alert() -> None:
    rules = (ROOT / "conf/prometheus/alerts.yml").read_text()
    expressions = re.findall(r"expr: (.+)", rules)
    assert [kind for kind, metric in ALERTED.items() if not any(metric in one for one in expressions)] == []
    assert ALERTED.keys() | NO_FIGURE == KINDS


def test_each_row_of_the_documentation_is_broken_and_repaired() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    table = page.partition("| finding | severity |")[2].partition("\n\n")[0]
    documented = {
        kind for line in table.splitlines() for kind in re.findall(r"`([\w-]+)`", line.split("|")[1:2][0])
    }
    assert documented == {case.kind for case in CASES.values()} == KINDS


def test_no_finding_is_without_a_row() -> None:
    made = partial(HealthFinding, severity=Severity.INFO, subjects=("s",), what="w", do="d")
    assert {made(kind=kind).kind for kind in KINDS} == KINDS
    with pytest.raises(ValueError, match="not a kind of finding"):
        made(kind="another")
