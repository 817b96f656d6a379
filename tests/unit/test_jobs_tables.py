"""Tables of jobs: cut to the terminal, sorted, and restricted to rows with problems."""

from __future__ import annotations

import argparse
import io
import json
import os
from pathlib import Path

import pytest

from stratalog.engine.driver.report import Report, Value, text_table
from stratalog.engine.health.finding import KINDS
from stratalog.jobs.main import main
from stratalog.jobs.tables import arranged, terminal_width
from stratalog.partitions.errors import InvalidCallError
from tests.unit.cluster_harness import LiveCluster
from tests.unit.test_layers import ROOT

ROWS: list[dict[str, Value]] = [
    {"topic": "flights", "partitions": 12, "configs": "retention.ms=1 " * 30, "value": "year INT, " * 20},
    {"topic": "clicks", "partitions": 3_000_000, "configs": "", "value": "STRING"},
]
NAMED = list(ROWS[0])
OTHER_FIGURES = {"MaxLag": "replication_lag_seconds", "RemoteCopyLagBytes": "remote_copy_lag_seconds"}
"""The alerts of these findings use another figure."""


@pytest.mark.parametrize("width", [200, 100, 80, 60, 40, 30, 22])
def test_no_line_of_a_table_is_wider_than_the_terminal(width: int) -> None:
    *table, found = text_table(NAMED, ROWS, width)
    assert max(map(len, table)) <= width
    assert found.startswith(f"(cut to {width} columns")
    shown = table[0].split()
    assert shown == NAMED[: len(shown)]
    left_out = NAMED[len(shown) :]
    assert (f"without {', '.join(left_out)}" in found) == bool(left_out)
    assert "partitions" not in shown or "3,000,000" in table[3]


def test_a_table_that_fits_is_not_cut() -> None:
    short: list[dict[str, Value]] = [{"topic": "flights", "value": "STRING"}]
    assert text_table(["topic", "value"], short, 15) == text_table(["topic", "value"], short)
    assert "cut" in text_table(["topic", "value"], [{"topic": "flights", "value": "STRING" * 9}], 20)[-1]


def test_only_a_terminal_has_a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "77")
    assert terminal_width(io.StringIO()) is None
    assert terminal_width(None) is None
    main_end, terminal = os.openpty()
    with os.fdopen(terminal, "w") as stream:
        assert terminal_width(stream) == 77
    os.close(main_end)


@pytest.mark.parametrize(
    ("wanted", "topics"),
    [
        ("topic", ["a", "b", "c", "d"]),
        ("topic:desc", ["d", "c", "b", "a"]),
        ("lag", ["c", "a", "d", "b"]),
        ("lag:desc", ["d", "a", "c", "b"]),
        (None, ["b", "a", "c", "d"]),
    ],
)
def test_rows_are_sorted_by_a_column_and_absent_values_are_last(wanted: str | None, topics: list[str]) -> None:
    rows: list[dict[str, Value]] = [
        {"topic": "b", "lag": None},
        {"topic": "a", "lag": 9},
        {"topic": "c", "lag": 2},
        {"topic": "d", "lag": 10},
    ]
    found = arranged(Report("groups", rows), argparse.Namespace(sort=wanted))
    assert [row["topic"] for row in found.rows] == topics


def test_a_column_that_is_missing_is_named() -> None:
    report = Report("groups", [{"topic": "a", "lag": 1}])
    with pytest.raises(InvalidCallError, match="has no column 'lags'; did you mean 'lag'"):
        arranged(report, argparse.Namespace(sort="lags"))
    assert arranged(Report("groups", ()), argparse.Namespace(sort="lags")).rows == ()


@pytest.mark.slow
def test_describe_shows_what_is_in_trouble_sorted(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    def rows(*given: str) -> list[tuple[str, int]]:
        main([*given, "--json", "--cluster", str(live.file)])
        found = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
        return list(dict.fromkeys((row["topic"], row["partition"]) for row in found))

    assert rows("describe", "--trouble") == []
    assert rows("describe", "--sort", "topic:desc", "--exclude-internal") == [("u", 0), ("t", 0)]
    with live.unreachable(3):
        troubled = rows("describe", "--trouble", "--exclude-internal")
    assert troubled == [("t", 0)]
    assert main(["topics", "list", "--sort", "topik", "--cluster", str(live.file)]) == 2
    assert "did you mean 'topic'" in capsys.readouterr().err


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """Topic ``t`` on three brokers, ``u`` on the first."""
    made = LiveCluster(tmp_path, on_disk=True)
    made.topic()
    made.topic("u", copies=1)
    if made.cluster.image.topic("u").first.isr != (1,):
        made.cluster.reassign({("u", 0): [1]}).raise_for_failures()
    made.fill("ab")
    return made


def test_each_finding_of_health_has_an_alert() -> None:
    alerts = (ROOT / "conf/prometheus/alerts.yml").read_text()

    def has_one(kind: str) -> bool:
        figure = OTHER_FIGURES.get(kind, kind.replace("-", "_"))
        return (
            f"stratalog_{figure}" in alerts
            or f'"{kind}"' in alerts
            or f"{kind}|" in alerts
            or f"|{kind}" in alerts
        )

    assert [kind for kind in sorted(KINDS) if not has_one(kind)] == []
