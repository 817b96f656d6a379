"""Values and errors in a notebook, progress in its cells: no JVM, no kernel."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from stratalog import Cluster, StratalogError
from stratalog.engine.cluster.overview import Overview
from stratalog.engine.driver.folding import folded
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.health import health as health_room
from stratalog.engine.upkeep.erasing.report import ErasureReport
from stratalog.jobs.progress import PlainProgress
from stratalog.partitions.amounts import bytes_text, span_text
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.html_table import LONGEST_CELL, MOST_ROWS, html_table
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster

EVIL = "<img src=x onerror=alert(1)>\x1b[31m\u202e"


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    live = LiveCluster(tmp_path, on_disk=True)
    live.cluster.topics.alter_configs(None, {"offsets.topic.num.partitions": "3"})
    live.tiered(partitions=2)
    live.append([f"v{n}" for n in range(40)])
    live.cluster.groups.commit("readers", {("t", 0): 1}).raise_for_failures()
    return live


# ------------------------------------------------------------------------------------ values


def test_names_of_others_are_text_in_html() -> None:
    report = Report(EVIL, [{EVIL: EVIL}], [Failure(EVIL, EVIL, EVIL)], {EVIL: EVIL}, notes=[EVIL])
    shown = report._repr_html_()
    assert "<img" not in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert shown.count("&lt;img") == 9  # operation, total and value, column, cell, three for a failure, note


def test_failures_and_notes_are_above_the_rows() -> None:
    report = Report("tier", [{"topic": "t"}], [Failure("t-0", "CODE", "it is gone")], notes=["broker 2 is fenced"])
    shown = report._repr_html_()
    assert shown.index("it is gone") < shown.index("broker 2 is fenced") < shown.index("<table>")
    assert "1 FAILED" in shown


def test_a_table_ends_after_some_rows_and_says_how_many_are_left() -> None:
    rows = [[str(number), "x" * 1000] for number in range(MOST_ROWS + 12)]
    shown = html_table(["number", "text"], rows, numbers=["number"])
    assert shown.count("<tr>") == MOST_ROWS + 1
    assert "... and 12 more" in shown
    assert max(map(len, re.findall("x+", shown))) < LONGEST_CELL
    assert "more" not in html_table(["number", "text"], rows[:MOST_ROWS])
    assert html_table(["number"], []) == ""


def test_equal_rows_appear_once_and_machines_get_all() -> None:
    own = [{"topic": "__consumer_offsets", "partition": n, "bytes": 0, "end": n} for n in range(50)]
    mine = [{"topic": "t", "partition": n, "bytes": 0, "end": 5} for n in range(4)]
    others = [{"topic": "u", "partition": n, "bytes": n, "end": 5} for n in range(2)]
    assert folded([*own, *mine, *others]) == [
        {"topic": "t", "partition": "0-3", "bytes": 0, "end": 5},
        *others,
        {"topic": "50 rows of internal topics", "partition": "...", "bytes": 0, "end": "..."},
    ]
    assert folded(own) == own  # the caller asked for these columns, and they differ
    assert folded([]) == []
    split = [mine[0], mine[2], mine[3]]  # the row of partition 1 is missing
    assert folded(split) == split
    report = Report("replicate", [*own, *mine])
    assert len(str(report).splitlines()) == 5
    assert report.to_json().count('"topic"') == 54


def test_columns_of_zeros_are_a_line_below_a_wide_table() -> None:
    """Nothing is lost: the line shows the values of these columns. A narrow table has all of its columns."""
    quiet = {"copied": 0, "size": 0.0, "rack": None, "error": "", "done": False, "a": 1, "b": 2}
    rows = [{"partition": 0, "lag": 5, **quiet}, {"partition": 0, "lag": 0, **quiet}]
    report = Report("tier", rows)
    lines = str(report).splitlines()
    assert lines[1].split() == ["partition", "lag", "a", "b"]
    assert lines[-1] == "in all rows: copied 0, size 0.00, rack -, error -, done no"
    assert "in all rows: copied 0" in report._repr_html_()
    assert ">copied<" not in report._repr_html_()
    assert "in all rows" not in str(Report("tier", [{"a": 0, "b": 0}]))


def test_an_unknown_value_among_zeros_is_shown() -> None:
    """The lag of a partition whose leader cannot be listed is unknown, not 0."""
    columns = dict.fromkeys("abcdefgh", 0)
    report = Report(
        "groups lag", [{"partition": 0, "lag": 0, **columns}, {"partition": 1, "lag": None, **columns}]
    )
    lines = str(report).splitlines()
    assert [line.split() for line in lines[1:5:2]] == [["partition", "lag"], ["0", "0"]]
    assert (lines[4].split(), lines[5][:17]) == (["1", "-"], "in all rows: a 0,")


@pytest.mark.parametrize("kind", [Report, ErasureReport])
def test_a_report_of_each_kind_shows_its_table(kind: type[Report]) -> None:
    report = kind("op", [{"topic": "t", "records": 2}])
    assert "topic  records" in repr(report).splitlines()
    assert "<td" in report._repr_html_()


def test_every_value_of_a_cluster_shows_itself(live: LiveCluster) -> None:
    cluster = live.cluster
    fetched, tail = cluster.fetch("t", 0, 0), cluster.tail("t", start="earliest")
    plan, image, made = cluster.plan_read("t"), cluster.image, cluster.topics.create("u", partitions=1)
    texts = {
        "Cluster('c', 3 brokers)": cluster,
        "t-0: 40 records from broker": fetched,
        "next offsets {0: 0, 1: 0}": tail,
        "ClusterImage('c', 3 brokers, 2 topics": image,
        "40 records of 2 partitions": plan,
        "topics create: done": made,
        "list() shows them": cluster.topics,
    }
    parts = (cluster.brokers, cluster.groups, cluster.transactions, cluster.quorum, cluster.catalog)
    assert not any("object at" in repr(part) for part in parts)
    for message, value in texts.items():
        assert message in repr(value)
        assert len(repr(value)) < 500
    assert "... and 10 more" in fetched._repr_html_()
    assert "v29" in fetched._repr_html_()
    assert "<td" in tail._repr_html_()
    assert "broker 1" in plan._repr_html_() or "broker 2" in plan._repr_html_() or "broker 3" in plan._repr_html_()
    assert "__consumer_offsets" in image._repr_html_()
    assert "in service" in image._repr_html_()


def test_values_of_records_that_python_cannot_hold_are_shown_all_the_same(live: LiveCluster) -> None:
    live.append([EVIL], at_ms=2**63 // 1000 - 1)
    shown = live.cluster.fetch("t", 0, 40)._repr_html_()
    assert "&lt;img" in shown
    assert "<img" not in shown


# ------------------------------------------------------------------------------------ the cluster


def test_a_cluster_shows_its_health_and_its_topics(live: LiveCluster) -> None:
    before = live.cluster.image.next_offset
    shown = live.cluster._repr_html_()
    assert "health:" in shown
    assert "remote.storage.enable=true" in shown
    with live.unreachable(2):
        broken = live.cluster._repr_html_()
    assert "its root does not answer" in broken or "another one" in broken
    assert "stratalog " in broken
    assert live.cluster.image.next_offset == before  # nothing was committed


def test_a_cluster_without_metadata_is_text_and_no_error(live: LiveCluster) -> None:
    for broker in (1, 2, 3):
        live.wipe(broker)
    shown = live.cluster._repr_html_()
    assert "Cluster(&#x27;c&#x27;, 3 brokers)" in shown
    assert "error" in shown or "health" in shown


@pytest.mark.slow
def test_a_look_that_takes_too_long_is_left_alone(live: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging storage is simulated. A second look does not begin meanwhile."""
    goes_on = threading.Event()
    overview = Overview(ports_of(live.cluster))

    def hangs(*ports: object) -> object:
        goes_on.wait(60)
        raise StratalogError("late")

    monkeypatch.setattr("stratalog.engine.cluster.overview.health", hangs)
    assert hangs is not health_room
    shown = overview.html("title", deadline_s=0.2)
    assert "no answer within 0.2 s" in shown
    assert "the previous overview is still running" in overview.html("title", deadline_s=0.2)
    goes_on.set()
    monkeypatch.undo()
    for _ in range(100):
        if "health:" in (shown := overview.html("title")):
            break
        threading.Event().wait(0.05)
    assert "health:" in shown


def test_an_overview_without_a_thread_says_so_and_the_next_one_tries_again(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    overview = Overview(ports_of(live.cluster))
    monkeypatch.setattr(threading.Thread, "start", refused)
    for _ in range(2):
        assert "can&#x27;t start new thread" in overview.html("title")
    monkeypatch.undo()
    assert "health:" in overview.html("title")


# ------------------------------------------------------------------------------------ errors in IPython

SESSION = """
import sys, threading
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="nocolor")
cells = sys.stdin.read().split("# ---\\n")
for cell in cells:
    shell.run_cell(cell)
    print("=====")
"""


def in_ipython(*cells: str) -> list[str]:
    """The output of each cell."""
    text = "# ---\n".join(textwrap.dedent(cell) for cell in cells)
    done = subprocess.run([sys.executable, "-c", SESSION], input=text, capture_output=True, text=True, check=True)
    return done.stdout.split("=====\n")[: len(cells)]


@pytest.mark.slow
def test_a_stratalog_error_shows_the_users_line_and_the_message(live: LiveCluster) -> None:
    opened, wrong, whole, debugged, inside, theirs, bug = in_ipython(
        f"from stratalog import Cluster\ncluster = Cluster.open({str(live.file)!r})",
        "x = 1\ncluster.topics.delete('nope')",
        "%tb",
        "import sys; print(get_ipython().InteractiveTB.tb is sys.last_traceback)",  # the frame where %debug starts
        "def mine():\n    return cluster.append_batches('nope', {})\n\nmine()",
        "1 / 0",
        "cluster.topics.create()",
    )
    assert opened == ""
    assert wrong.splitlines()[:3] == ["Cell In[1], line 2", "----> 2 cluster.topics.delete('nope')", ""]
    assert wrong.splitlines()[3].startswith("UnknownTopicOrPartitionError: topic 'nope' does not exist")
    assert wrong.splitlines()[4:] == ["(%tb shows the full traceback)"]
    assert len(whole.splitlines()) > 15
    assert "delete_topic" in whole
    assert debugged == "True\n"
    assert [line for line in inside.splitlines() if line.startswith("---->")] == [
        "----> 4 mine()",
        "----> 2 return cluster.append_batches('nope', {})",
    ]
    assert "ZeroDivisionError" in theirs
    assert "Traceback (most recent call last)" in theirs
    assert "Traceback (most recent call last)" in bug
    assert "TypeError" in bug


@pytest.mark.slow
def test_the_handler_of_another_library_stays(live: LiveCluster) -> None:
    *_, own = in_ipython(
        "get_ipython().set_custom_exc((KeyError,), lambda *given, **named: print('theirs'))",
        f"from stratalog import Cluster\ncluster = Cluster.open({str(live.file)!r})",
        "{}[1]",
    )
    assert own == "theirs\n"


@pytest.mark.slow
def test_work_is_drawn_in_the_cell_and_goes_when_it_has_ended(live: LiveCluster) -> None:
    """Only output of the main thread is drawn. The report stays on the screen."""
    _, shown = in_ipython(
        f"""
        from stratalog import Cluster
        get_ipython().kernel = object()  # as in a notebook
        cluster = Cluster.open({str(live.file)!r})
        drawn = []
        class Publisher(type(get_ipython().display_pub)):
            def publish(self, data, metadata=None, **named):
                drawn.append(data)
        get_ipython().display_pub = Publisher()
        """,
        """
        import threading
        report = cluster.merge()
        aside = threading.Thread(target=cluster.merge); aside.start(); aside.join()
        print([one["text/plain"] for one in drawn], ["<progress" in one["text/html"] for one in drawn])
        """,
    )
    assert shown == "['merge: 0 of 5 partitions, 0 s', ''] [True, False]\n"


# ------------------------------------------------------------------------------------ plain lines


def test_without_a_terminal_long_work_says_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock(0)
    progress = PlainProgress(clock, every_s=30)
    progress.start("tier", 1000, "segments")
    for _ in range(4):
        clock.advance_ms(20_000)
        progress.advance(1_500_000)
    progress.finish()
    assert capsys.readouterr().err.splitlines() == [
        "tier: 2 of 1,000 segments, 3,000,000 bytes, 40 s",
        "tier: 4 of 1,000 segments, 6,000,000 bytes, 80 s",
    ]


# ------------------------------------------------------------------------------------ why nothing was done


@pytest.mark.parametrize(
    ("count", "message"),
    [(0, "0 bytes"), (1, "1 byte"), (2735, "2,735 bytes"), (1 << 30, "1 GiB"), (3 << 20, "3 MiB")],
)
def test_bytes_are_shown_as_people_write_them(count: int, message: str) -> None:
    assert bytes_text(count) == message


@pytest.mark.parametrize(
    ("ms", "message"),
    [
        *((-5, "0 ms"), (250, "250 ms"), (3_000, "3 s"), (90_000, "90 s"), (3_600_000, "1 h")),
        *((86_400_000, "1 day"), (7 * 86_400_000, "7 days"), (1_500, "1 s"), (60_000, "1 min")),
    ],
)
def test_spans_of_time_are_shown_as_people_write_them(ms: int, message: str) -> None:
    assert span_text(ms) == message


def whys(report: Report, topic: str = "t") -> list[object]:
    return [row["why"] for row in report.rows if row["topic"] == topic]


@pytest.fixture
def quiet(tmp_path: Path) -> LiveCluster:
    """A tiered topic with ordinary configs, three seconds after an append."""
    live = LiveCluster(tmp_path)
    live.cluster.topics.create("t", partitions=2, replication_factor=3, configs={"remote.storage.enable": "true"})
    live.append(["a"], at_ms=live.clock.now_ms()).raise_for_failures()
    live.clock.advance_ms(3_000)
    return live


def test_upkeep_that_does_nothing_says_why(quiet: LiveCluster) -> None:
    cluster = quiet.cluster
    size = cluster.plan_read("t").size_bytes
    first, second = cluster.tier(), cluster.tier()
    assert whys(first) == [f"{size:,} bytes, 3 s: a segment is sealed at 1 GiB or 7 days", "no records"]
    assert whys(second) == [
        f"{size:,} bytes, as in the previous run: a segment is sealed at 1 GiB or 7 days",
        "no records",
    ]
    assert whys(cluster.merge()) == [
        f"1 file, {size:,} bytes: it has no neighbor to merge with",
        "no records",
    ]
    assert whys(cluster.retain()) == [
        "nothing is tiered, so all records remain on the brokers",
        "no records",
    ]
    cluster.topics.alter_configs("t", {"retention.ms": "-1", "remote.copy.lag.ms": "-1", "segment.ms": "1"})
    assert "sealed, but held back by remote.copy.lag.ms = -1" in str(whys(cluster.tier())[0])


def test_upkeep_that_does_something_does_not(quiet: LiveCluster) -> None:
    cluster = quiet.cluster
    cluster.topics.alter_configs("t", {"segment.ms": "1"})
    assert whys(cluster.tier().raise_for_failures()) == [None, "no records"]
    assert whys(cluster.tier()) == ["all of the log is in the remote tier", "no records"]
    assert whys(cluster.merge()) == ["no records that are not in the remote tier", "no records"]
    cluster.topics.alter_configs("t", {"local.retention.ms": "1000"})
    assert "are deleted from this broker after 1 min" in str(whys(cluster.retain())[0])
    quiet.clock.advance_ms(61_000)
    assert whys(cluster.retain())[0] is None


def test_retention_says_its_limits(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.cluster.topics.create("t", partitions=1, replication_factor=1)
    live.append(["a"], at_ms=live.clock.now_ms()).raise_for_failures()
    live.clock.advance_ms(3_000)
    size = live.cluster.plan_read("t").size_bytes
    found = {
        f"{size:,} bytes, 3 s: the first file is deleted after 7 days": {},
        f"{size:,} bytes, 3 s: the first file is deleted after 7 days, or above 1 MiB": {
            "retention.bytes": "1048576"
        },
        f"{size:,} bytes: the first file is deleted above 1 MiB": {"retention.ms": "-1"},
        f"{size:,} bytes: no limit is set": {"retention.bytes": "-1"},
    }
    for why, configs in found.items():
        live.cluster.topics.alter_configs("t", configs)
        assert whys(live.cluster.retain()) == [why]


# ------------------------------------------------------------------------------------ if_not_exists


def test_a_topic_may_be_there_already_with_the_same_shape(live: LiveCluster) -> None:
    create = live.cluster.topics.create
    configs = {"retention.ms": "86400000"}
    (made,) = create("u", partitions=2, replication_factor=2, configs=configs, if_not_exists=True).rows
    assert made["created"]
    (again,) = create("u", partitions=2, replication_factor=2, configs=configs, if_not_exists=True).rows
    assert again == {**made, "created": False}
    assert not create("u", if_not_exists=True).rows[0]["created"]  # the existing topic satisfies the request
    before = live.cluster.image
    with pytest.raises(
        StratalogError, match=r"but differs: partitions is 2, not 3; retention.ms is 86400000, not 5"
    ):
        create("u", partitions=3, configs={"retention.ms": 5}, if_not_exists=True)
    with pytest.raises(StratalogError, match=r"replication_factor is 2, not 1; segment.ms is not set, not 9"):
        create("u", replication_factor=1, configs={"segment.ms": 9}, if_not_exists=True)
    with pytest.raises(StratalogError, match="already exists, with id"):
        create("u")
    assert live.cluster.image == before


def test_a_topic_of_other_types_is_another_one(live: LiveCluster) -> None:
    from stratalog.engine.admin.topics import create_topic

    ports = ports_of(live.cluster)
    create_topic(*ports.for_tasks, "u", value_schema='"string"')
    assert not create_topic(*ports.for_tasks, "u", value_schema='"string"', if_not_exists=True).rows[0]["created"]
    with pytest.raises(StratalogError, match="value is string, not int64"):
        create_topic(*ports.for_tasks, "u", value_schema='"long"', if_not_exists=True)
    with pytest.raises(StratalogError, match="key is binary, not string; value is string, not binary"):
        create_topic(*ports.for_tasks, "u", key_schema='"string"', if_not_exists=True)
    assert isinstance(live.cluster, Cluster)
