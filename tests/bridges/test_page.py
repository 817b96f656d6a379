"""The page of a cluster: its data compared with the cluster; names that are HTML; saving the page."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from botocore.session import Session

from stratalog.bridges.page.activity import LEAST_STEPS, MOST_STEPS, activity, runs
from stratalog.bridges.page.document import document
from stratalog.bridges.page.report import StatePage, report
from stratalog.bridges.page.served.samples import SIZE, figures_of
from stratalog.engine.driver.report import Value, utc_text
from stratalog.jobs.main import main
from stratalog.partitions.errors import InvalidCallError, LeaderNotAvailableError
from stratalog.partitions.store import open_store
from tests.ports import ports_of, with_ports
from tests.s3_server import S3Endpoint
from tests.unit.cluster_harness import LiveCluster

HOUR_MS = 3_600_000
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """Topic ``t`` has records in both tiers but no hot ones; those of ``h`` are hot. A group lags."""
    made = LiveCluster(tmp_path, on_disk=True)
    small = {"offsets.topic.num.partitions": "1", "health.log.dir.max.used.ratio": "1"}
    made.cluster.topics.alter_configs(None, small)
    made.tiered()
    made.fill("abcd")
    made.cluster.tier().raise_for_failures()
    made.cluster.retain().raise_for_failures()
    made.cluster.topics.alter_configs("t", {"local.retention.bytes": "-1"})
    made.fill("ef")
    made.cluster.tier().raise_for_failures()
    made.fill("g")
    made.cluster.topics.delete_records("t", {0: 1}).raise_for_failures()
    made.topic("h", partitions=2)
    made.fill("xyz", "h")
    made.cluster.groups.commit("g", {("t", 0): 2}).raise_for_failures()
    made.cluster.maintain(only=["replicate"]).raise_for_failures()
    return made


def content_of(page: StatePage | str) -> dict[str, Any]:
    """The content as a browser reads it."""
    text = page if isinstance(page, str) else page.html
    [found] = re.findall(r'<script type="application/json" id="content">(.*?)</script>', text, re.DOTALL)
    content: dict[str, Any] = json.loads(found)
    return content


def partition(content: dict[str, Any], topic: str, number: int = 0) -> dict[str, Any]:
    names = [one["name"] for one in content["topics"]]
    rows = (dict(zip(content["partition_columns"], row, strict=True)) for row in content["partitions"])
    return next(row for row in rows if (names[row["topic"]], row["partition"]) == (topic, number))


def spans(content: dict[str, Any], row: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(content["tiers"][tier], start, end) for tier, start, end in row["spans"]]


# ------------------------------------------------------------------------------------------------ data


@pytest.mark.slow
def test_tiers_are_those_of_the_log(live: LiveCluster) -> None:
    content = content_of(live.cluster.report())
    row = partition(content, "t")
    [leader] = [one for one in live.cluster.describe(["t"]).raise_for_failures().rows if one["role"] == "leader"]
    local = leader["local_start"]
    assert isinstance(local, int)
    assert 1 < local < 6
    assert spans(content, row) == [
        ("expired", 0, 1),
        ("cold", 1, local),
        ("both", local, 6),
        ("pending", 6, 7),
    ]
    shown = {
        name: row[name] for name in ("leader", "epoch", "log_start", "local_start", "high_watermark", "log_end")
    }
    assert shown == {
        "leader": leader["broker"],
        **{name: leader[name] for name in ("epoch", "log_start", "local_start", "high_watermark", "log_end")},
    }
    assert row["remote_end"] == leader["remote_end"]
    sizes = dict(zip(content["tiers"], row["sizes"], strict=True))
    assert sizes["both"] + sizes["pending"] == leader["local_bytes"]
    assert all(sizes[tier] > 0 for tier in ("expired", "cold", "both", "pending"))
    topic = next(one for one in content["topics"] if one["name"] == "t")
    assert (topic["records"], topic["pending_records"], topic["sizes"]) == (6, 1, row["sizes"])
    assert topic["remote_bytes"] == leader["remote_bytes"]


@pytest.mark.slow
def test_a_topic_that_is_not_tiered_is_hot(live: LiveCluster) -> None:
    content = content_of(live.cluster.report())
    assert spans(content, partition(content, "h")) == [("hot", 0, 3)]
    assert spans(content, partition(content, "h", 1)) == []
    topic = next(one for one in content["topics"] if one["name"] == "h")
    assert (topic["remote_bytes"], topic["policy"], topic["partitions"]) == (None, "forever", 2)


@pytest.mark.slow
def test_replicas_brokers_and_groups_are_reported(live: LiveCluster) -> None:
    content = content_of(live.cluster.report())
    row = partition(content, "t")
    replicas = [dict(zip(content["replica_columns"], one, strict=True)) for one in row["replicas"]]
    assert sorted(one["state"] for one in replicas) == ["in sync", "in sync", "leader"]
    assert {one["log_end"] for one in replicas} == {7}
    assert row["state"] == "in sync"
    assert [(one["broker"], one["state"], one["rack"]) for one in content["brokers"]] == [
        *((1, "ok", "a"), (2, "ok", "b"), (3, "ok", "c"))
    ]
    on_disk = [sum(f.stat().st_size for f in live.root(n).rglob("*.parquet")) for n in (1, 2, 3)]
    of_data = [one["bytes"] for one in content["brokers"]]
    assert all(0 < size <= there for size, there in zip(of_data, on_disk, strict=True))
    assert [(one["broker"], one["state"]) for one in content["voters"]] == [(1, "votes")]
    [group] = content["groups"]
    assert (group["group"], group["topic"], group["lag"]) == ("g", "t", 5)
    [commit] = group["commits"]
    assert dict(zip(content["commit_columns"], commit, strict=True)) == {
        "partition": 0,
        "committed": 2,
        "high_watermark": 7,
        "lag": 5,
        "metadata": "",
        "commit_ms": group["commit_ms"],
    }


@pytest.mark.slow
def test_findings_have_their_commands_and_an_unreachable_broker_hides_no_log(live: LiveCluster) -> None:
    away = live.leader()
    with live.unreachable(away):
        health = live.cluster.health()
        content = content_of(live.cluster.report())
    findings = content["health"]["findings"]
    assert [(one["severity"], one["kind"], one["do"]) for one in findings] == [
        (str(one.severity), one.kind, one.do) for one in health.findings
    ]
    row = partition(content, "t")
    assert {findings[number]["kind"] for number in row["findings"]} == {"current-leader"}
    (one,) = [one for one in findings if one["kind"] == "current-leader"]
    assert {"metadata", "t-0"} <= {*one["subjects"]}
    assert (row["state"], row["log_end"]) == ("under-replicated", 7)
    assert spans(content, row)[-1] == ("pending", 6, 7)
    assert [away, "unreachable", None, None, None, None] in row["replicas"]
    [broker] = [one for one in content["brokers"] if one["broker"] == away]
    assert (broker["state"], broker["bytes"]) == ("unreachable", None)


@pytest.mark.slow
def test_what_no_broker_shows_is_unknown_and_not_zero(live: LiveCluster) -> None:
    live.topic("alone", partitions=3, copies=1)  # each broker has one of them
    names = ("records", "local_bytes")

    def columns(content: dict[str, Any]) -> list[Any]:
        [topic] = [one for one in content["topics"] if one["name"] == "alone"]
        return [topic[name] for name in names]

    assert None not in columns(content_of(live.cluster.report()))
    with live.unreachable(2):
        content = content_of(live.cluster.report())
    assert columns(content) == [None, None]
    assert ("", SIZE) not in [figure.name for figure in figures_of(content)]


@pytest.mark.slow
def test_it_costs_what_health_costs_and_changes_nothing(live: LiveCluster) -> None:
    with live.unchanged():
        page, health = live.driver().report(), live.driver().health()
    one, other = page.health.counts, health.counts
    assert one.reads == other.reads > 0
    assert abs(one.lists - other.lists) <= 2  # a folder is listed until two listings agree
    assert (one.creates, one.deletes, one.copies) == (0, 0, 0)


# ------------------------------------------------------------------------------------------------ the document


@pytest.mark.slow
def test_names_that_are_html_are_text(live: LiveCluster) -> None:
    live.cluster.groups.commit(EVIL, {("t", 0): 1}).raise_for_failures()
    page = live.cluster.report()
    assert "alert(1)" in page.html
    assert "<script>alert" not in page.html
    assert "<img" not in page.html
    assert [one["group"] for one in content_of(page)["groups"]] == [EVIL, "g"]
    assert len(re.findall(r"<script", page.html)) == 2


def test_text_that_would_steer_a_reader_is_printable() -> None:
    nasty = {"cluster": "c", "names": ["\u2028", "&lt;", "\ud800", "<!--"]}
    text = document(nasty, "<b>health</b>\x1b[31m")
    assert content_of(text) == nasty
    assert "&lt;b&gt;health&lt;/b&gt;\\x1b[31m" in text
    text.encode()


@pytest.mark.slow
def test_the_policy_lets_nothing_but_its_own_script_run_and_nothing_load(live: LiveCluster) -> None:
    text = live.cluster.report().html
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    rules = {name: rest for name, _, rest in (one.strip().partition(" ") for one in policy.split(";"))}
    assert rules.pop("img-src") == "data:"
    for name, element in (("style-src", "style"), ("script-src", "script")):
        [body] = re.findall(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert rules.pop(name) == f"'sha256-{digest}'"
    assert set(rules.values()) == {"'none'"}
    assert {"default-src", "base-uri", "form-action"} == set(rules)
    assert re.findall(r'(?:src|href)="([^"]*)"', text) == ["data:,"]


@pytest.mark.slow
def test_a_notebook_shows_it_in_a_frame_that_reaches_nothing(live: LiveCluster) -> None:
    page = live.cluster.report()
    shown = page._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert 'sandbox="allow-scripts"' in shown
    assert "<script" not in shown
    assert repr(page).startswith("StatePage('c', ")


# ------------------------------------------------------------------------------------------------ the history


def row(at_ms: int, **of_row: Any) -> dict[str, Value]:
    """A row as ``Cluster.history`` returns it."""
    totals = json.dumps(of_row.pop("totals", {}))
    notes = json.dumps(of_row.pop("notes", []))
    given = {"operation": "maintain", "phase": "ended", "outcome": "done", "user": "u", "host": "h", "job": None}
    texts = {"time": utc_text(at_ms), "run": "77", "arguments": "{}", "totals": totals, "notes": notes}
    return {**given, **texts, "cluster": "c", "version": "0", "duration": 5, **of_row}


@pytest.mark.slow
def test_nothing_is_recorded_yet(live: LiveCluster) -> None:
    content = content_of(with_ports(report, ports_of(live.cluster))())
    assert (content["activity"], content["runs"]) == (None, [])


@pytest.mark.slow
def test_a_history_that_cannot_be_read_is_no_reason_for_no_page(live: LiveCluster) -> None:
    def history() -> list[dict[str, Value]]:
        raise LeaderNotAvailableError("__operations-0: no leader")

    content = content_of(with_ports(report, ports_of(live.cluster))(history))
    assert content["history_unread"] == "LEADER_NOT_AVAILABLE: __operations-0: no leader"
    assert partition(content, "t")["log_end"] == 7


def test_the_history_makes_series_for_the_cluster_and_for_each_topic() -> None:
    rows = [
        row(0, totals={"a/log_end": 10, "b/log_end": 5, "a/remote_end": 4}),
        row(HOUR_MS, totals={"a/log_end": 30, "b/log_end": 6, "a/remote_end": 30, "copied_bytes": 7}),
        row(HOUR_MS + 1, totals={"copied_bytes": 1, "a/copied_bytes": 1, "a/backlog_bytes": 9}),
        row(2 * HOUR_MS, totals={"a/log_end": 25, "requests": 4}),  # the topic was restored; nothing was appended
    ]
    found = activity([rows[2], rows[0], rows[3], rows[1]])
    assert found is not None
    assert (found["from_ms"], found["step_ms"]) == (0, 300_000)
    scopes = {
        scope: {one["title"]: [(n, v) for n, v in enumerate(one["values"]) if v] for one in series}
        for scope, series in found["scopes"].items()
    }
    assert scopes == {
        "": {
            "Appended records": [(12, 21)],
            "Replicated bytes": [(12, 8)],
            "Not tiered": [(0, 6)],
            "Due and not tiered": [(12, 9), (24, 9)],
        },
        "a": {
            "Appended records": [(12, 20)],
            "Replicated bytes": [(12, 1)],
            "Not tiered": [(0, 6)],
            "Due and not tiered": [(12, 9), (24, 9)],
        },
        "b": {"Appended records": [(12, 1)]},
    }
    waiting = next(one for one in found["scopes"][""] if one["title"] == "Not tiered")
    assert (waiting["level"], waiting["values"][0], waiting["values"][1], waiting["values"][12]) == (
        True,
        6,
        None,
        0,
    )


@pytest.mark.parametrize("days", [0, 1, 30, 400, 4_000])
def test_steps_are_few_and_hold_every_event(days: int) -> None:
    last = 1_700_000_000_000
    found = activity([row(last - days * 24 * HOUR_MS), row(last, totals={"copied_bytes": 3})])
    assert found is not None
    [series] = found["scopes"][""]
    assert LEAST_STEPS <= len(series["values"]) <= MOST_STEPS
    assert series["values"][-1] == 3
    assert found["from_ms"] + len(series["values"]) * found["step_ms"] > last


def test_the_last_runs_are_the_latest_first() -> None:
    rows = [
        row(1, operation="topics delete", phase="started", outcome=None, arguments='{"name": "t"}'),
        row(
            2,
            outcome="failed",
            job="etl",
            run="8",
            totals={"t/log_end": 3, "requests": 9, "made": 1_234, "b": 2},
            notes=["why"],
        ),
    ]
    later, earlier = runs(rows)
    assert later == {
        "time_ms": 2,
        "operation": "maintain",
        "outcome": "failed",
        "by": "u@h",
        "run": "etl 8",
        "duration_ms": 5,
        "totals": "made 1,234, b 2",
        "notes": "why",
    }
    assert (earlier["outcome"], earlier["run"], earlier["notes"]) == ("started", "77", '{"name": "t"}')


# ------------------------------------------------------------------------------------------------ saved


@pytest.mark.slow
def test_a_job_writes_it_in_place_of_an_older_one(
    live: LiveCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out" / "report.html"
    file.parent.mkdir()
    file.write_text("old")
    with live.unreachable(3):
        assert main(["report", "--json", "-o", str(file), "--cluster", str(live.file)]) == 0
    [text] = json.loads(capsys.readouterr().out)["rows"]
    assert text == {"page": str(file), "bytes": file.stat().st_size, "errors": 1, "warnings": 0}
    assert content_of(file.read_text())["cluster"] == "c"
    assert [one.name for one in file.parent.iterdir()] == ["report.html"]


@pytest.mark.slow
def test_a_cluster_that_cannot_be_opened_has_a_page_that_says_so(
    live: LiveCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.html"
    with live.unreachable(1):
        assert main(["report", "-o", str(file), "--cluster", str(live.file)]) == 0
    [finding] = content_of(file.read_text())["health"]["findings"]
    assert "cannot be opened" in finding["what"]


@pytest.mark.slow
def test_a_page_is_not_saved_to_a_bad_address_or_inside_a_root(
    live: LiveCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = live.cluster.report()
    (tmp_path / "link").symlink_to(tmp_path / "b1")
    for target, why in (
        (tmp_path / "no" / "report.html", "No such file"),
        (tmp_path / "b1" / "report.html", "is inside"),
        (tmp_path / "link" / "report.html", "is inside"),
        ("s3://bucket", "name the file"),
        ("memory://bucket/", "name the file"),
        ("ftp://host/report.html", "the place of the page: this address .ftp:.... is refused"),
    ):
        with pytest.raises(InvalidCallError, match=why):
            page.save(target)
    (tmp_path / "page.html").symlink_to(tmp_path / "b1" / "page.html")
    page.save(tmp_path / "page.html")  # the page replaces the link
    assert not (tmp_path / "page.html").is_symlink()
    assert not (tmp_path / "b1" / "page.html").exists()
    assert main(["report", "-o", str(tmp_path / "no" / "x"), "--cluster", str(live.file)]) == 2
    assert "name another file" in capsys.readouterr().err


@pytest.mark.slow
def test_an_address_is_a_place_too(live: LiveCluster) -> None:
    page = live.cluster.report()
    assert page.save("memory://pages/report.html") == "memory://pages/report.html"
    page.save("memory://pages/report.html")
    assert open_store("memory://pages").read("report.html").decode() == page.html


@pytest.mark.s3
def test_a_bucket_gives_it_out_as_a_page(live: LiveCluster, s3_endpoint: S3Endpoint) -> None:
    text = live.file.read_text()
    live.file.write_text(f'{text}[s3]\nendpoint_url = "{s3_endpoint.url}"\nregion = "{s3_endpoint.region}"\n')
    page, key = live.driver().report(), f"{live.folder.name}/report.html"
    for _ in range(2):
        page.save(f"s3://{s3_endpoint.bucket}/{key}")
    client = Session().create_client("s3", endpoint_url=s3_endpoint.url, region_name=s3_endpoint.region)
    got = client.get_object(Bucket=s3_endpoint.bucket, Key=key)
    assert got["Body"].read().decode() == page.html
    assert got["ContentType"] == "text/html; charset=utf-8"
