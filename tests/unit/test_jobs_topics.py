"""The command line of topics: alter. The types are in files, which need no Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from stratalog.jobs.topics import main
from stratalog.partitions.records import type_to_json
from tests.unit.cluster_harness import LiveCluster

NARROW = pa.struct([("x", pa.int64())])
WIDE = pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.string())]))])


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """Topic ``t``, with values of ``NARROW``; ``narrow.json`` and ``wide.json`` beside the cluster file."""
    made = LiveCluster(tmp_path, on_disk=True)
    (tmp_path / "narrow.json").write_text(type_to_json(NARROW))
    (tmp_path / "wide.json").write_text(type_to_json(WIDE))
    assert run(made, "create", "t", "--partitions", "1", "--value", f"@{tmp_path / 'narrow.json'}") == 0
    return made


def run(live: LiveCluster, command: str, *argv: str) -> int:
    return main([command, "--cluster", str(live.file), *argv])


def test_a_topic_that_is_there_is_fine_where_it_may_be(
    live: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = f"@{live.folder / 'narrow.json'}"
    assert run(live, "create", "t", "--value", narrow) == 2
    assert run(live, "create", "t", "--value", narrow, "--if-not-exists") == 0
    assert run(live, "create", "t", "--if-not-exists") == 2
    assert "TOPIC_ALREADY_EXISTS" in capsys.readouterr().err


def test_a_topic_gets_more_partitions(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    for more, added in ((["--dry-run"], 2), ([], 2), ([], 0)):
        capsys.readouterr()
        assert run(live, "create-partitions", "t", "3", "--json", *more) == 0
        report = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert len(report["rows"]) == added
        assert [row["partition"] for row in report["rows"]] == [1, 2][:added]
    assert len(live.cluster.image.topic("t").partitions) == 3
    assert run(live, "create-partitions", "t", "2") == 2
    assert "has 3 partitions, and cannot have 2" in capsys.readouterr().err
    with live.unchanged():
        assert run(live, "create-partitions", "t", "2", "--if-not-exists") == 0


def test_the_report_says_which_fields_were_added(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    wide = f"@{live.folder / 'wide.json'}"
    for more, fields in ((["--dry-run"], ["value.y"]), ([], ["value.y"]), ([], [])):
        capsys.readouterr()
        assert run(live, "alter", "t", "--value", wide, "--json", *more) == 0
        report = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert report["rows"] == [{"topic": "t", "field": name} for name in fields]
    capsys.readouterr()
    assert run(live, "list", "--json") == 0
    assert (
        json.loads(capsys.readouterr().out.splitlines()[-1])["rows"][0]["value"] == "x BIGINT, y STRUCT<z: STRING>"
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "topic 't': give the type of its keys or values"),
        (("--key", "@wide.json"), "topic 't': its key is binary, which cannot change"),
        (("--value", "@nothing.json"), "nothing.json cannot be read"),
    ],
)
def test_a_type_that_does_not_grow_is_a_bad_call(
    live: LiveCluster, argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [each.replace("@", f"@{live.folder}/") for each in argv]
    with live.unchanged():
        assert run(live, "alter", "t", *given) == 2
    assert message in capsys.readouterr().err


def test_a_topic_that_is_missing_may_be_deleted_again(
    live: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(live, "delete", "gone", "--yes") == 2
    assert run(live, "delete", "gone", "--yes", "--if-exists") == 0
    assert "there is no topic 'gone'" in capsys.readouterr().out
    assert run(live, "delete", "t", "--yes", "--if-exists") == 0
    assert "t" not in live.cluster.image.topic_ids


def test_a_list_without_the_engines_own_topics(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    live.cluster.groups.commit("g", {("t", 0): 0})
    for more, names in (([], ["__consumer_offsets", "t"]), (["--exclude-internal"], ["t"])):
        capsys.readouterr()
        assert run(live, "list", "--json", *more) == 0
        rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
        assert [row["topic"] for row in rows if row["topic"] != "__operations"] == names
