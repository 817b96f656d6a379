"""Names come from other people, so a displayed name must not control a terminal or forge a line."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import traceback
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.engine.driver.report import Failure, Report
from stratalog.jobs import brokers, describe, groups, read, tail, topics, transactions, verify
from stratalog.partitions import errors
from stratalog.partitions.errors import CorruptSegmentError, InvalidCallError, StratalogError
from stratalog.partitions.printable import printable
from tests.unit.cluster_harness import LiveCluster
from tests.unit.harness import batch
from tests.unit.test_layers import MODULES, tree

EVIL = "x\x1b]0;owned\x07\r\nFAILED b-0: \x9b2J\u202egnp\u2028\u2066\x7f\tend"
"""A title, a forged line, a cleared screen, a changed direction, an additional line."""

everything = st.text(st.characters(exclude_categories=()))


@given(everything)
def test_printable_characters_stay_and_the_others_are_escaped(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    shown.encode()
    if text.isprintable():
        assert shown == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Æther 漢字 'a' \\n", "Æther 漢字 'a' \\n"),
        ("a\x1b[2J\x7f\x9b", r"a\x1b[2J\x7f\x9b"),
        ("a\r\n\tb", r"a\r\n\tb"),
        ("\u202e\u2066\u2028\ud800", r"\u202e\u2066\u2028\ud800"),
    ],
)
def test_escapes_look_as_in_python(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_the_message_of_every_error_is_one_printable_line() -> None:
    """This includes a traceback, and a line of a log."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, StratalogError)]
    assert len(kinds) > 40
    for kind in kinds:
        error = Exception.__new__(kind, f"group {EVIL}")
        error.args = (f"group {EVIL}",)
        (line,) = traceback.format_exception_only(error)
        assert line.removesuffix("\n").isprintable()
        assert str(error) == f"group {printable(EVIL)}"
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.emit(logging.LogRecord("a", logging.WARNING, "", 0, "%s", (CorruptSegmentError(EVIL),), None))
    assert stream.getvalue() == f"{printable(EVIL)}\n"


LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def is_logging(function: ast.expr) -> bool:
    """Whether the call is ``_log.info`` or similar."""
    return (
        isinstance(function, ast.Attribute)
        and function.attr in LEVELS
        and isinstance(function.value, ast.Name)
        and function.value.id == "_log"
    )


@pytest.mark.slow
def test_a_line_of_the_log_is_printable_whatever_it_is_about() -> None:
    """The arguments of each logged line are errors, are escaped by ``%r``, or are otherwise printable."""
    found: dict[str, str] = {}
    for module in MODULES:
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.Call) and is_logging(node.func):
                form, *arguments = node.args
                assert isinstance(form, ast.Constant)
                kinds = re.findall("%[a-z]", form.value)
                assert set(kinds) <= {"%r", "%s"}
                for kind, argument in zip(kinds, arguments, strict=True):
                    if kind == "%s":
                        found[f"{module}: {ast.unparse(argument)}"] = form.value
    printed = {"error", "error.code", "store.uri", "self._not_offered(name)"}
    printed |= {"self._name", "self._what", "line", "result.headline"}  # names of operations, and counts
    others = {place for place in found if place.split(": ")[1] not in printed}
    assert {place for place in others if not place.split(": ")[1].startswith("printable(")} == set()
    assert len(found) >= 4


def test_a_report_is_printable_line_by_line_and_exact_as_json() -> None:
    report = Report(
        operation="test",
        rows=[{"name": EVIL, EVIL: 1}],
        failures=[Failure.of(EVIL, StratalogError(f"{EVIL}: {EVIL}"))],
        totals={EVIL: EVIL},
        notes=[EVIL],
    )
    lines = str(report).split("\n")
    assert all(line.isprintable() for line in lines)
    assert len(lines) == 6
    assert lines[-1] == f"FAILED {printable(EVIL)}: UNKNOWN_SERVER_ERROR: {printable(EVIL)}"
    assert json.loads(report.to_json())["rows"] == [{"name": EVIL, EVIL: 1}]
    assert "\x1b" not in report._repr_html_()
    assert "\u202e" not in report._repr_html_()


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """Every thing that Kafka lets users name has such a name."""
    live = LiveCluster(tmp_path, on_disk=True)
    rack = json.dumps(EVIL).replace("\x7f", "\\u007f")
    live.file.write_text(live.file.read_text().replace('rack = "c"', f"rack = {rack}"))
    live.cluster = live.driver()
    live.cluster.brokers.register([3]).raise_for_failures()
    live.cluster.topics.alter_configs(
        None, {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
    )
    live.topic()
    live.append([EVIL, "b"], producer=EVIL).raise_for_failures()
    live.cluster.groups.commit(EVIL, {("t", 0): 1}).raise_for_failures()
    with live.cluster.transactions.begin(EVIL) as transaction:
        transaction.append_batches("t", {0: [batch([EVIL])]})
    return live


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "argv", "status"),
    [
        (groups, ["list"], 0),
        (groups, ["describe", EVIL], 0),
        (groups, ["describe", EVIL + "y"], 2),
        (transactions, ["list"], 0),
        (transactions, ["describe", EVIL], 0),
        (transactions, ["describe", EVIL + "y"], 2),
        (brokers, ["list"], 0),
        (describe, ["--topics", EVIL], 2),
        (topics, ["create", EVIL], 2),
        (read, ["t", "--explain", "--client-rack", EVIL], 0),
        (tail, ["t", "--client-rack", EVIL], 0),
        (verify, ["--deep"], 1),
    ],
    ids=lambda value: value.__name__ if hasattr(value, "__name__") else "",
)
def test_no_job_prints_what_steers_a_terminal(
    live: LiveCluster, job: object, argv: Sequence[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    if job is verify:  # a root to which another writer has access
        (live.root(3) / "broker.json").write_text(
            json.dumps({"cluster_id": EVIL, "broker_id": 3, "directory_id": EVIL, "version": 1})
        )
    assert job.main([*argv, "--cluster", str(live.file)]) == status  # type: ignore[attr-defined]
    text = capsys.readouterr()
    lines = (text.out + text.err).split("\n")
    assert [line for line in lines if not line.replace("\t", "" if job is tail else "\t").isprintable()] == []
    assert [line for line in lines if line.startswith("FAILED b-0")] == []
    assert r"\x1b]0;owned\x07" in text.out + text.err


def test_the_name_of_a_producer_has_a_bound(tmp_path: Path) -> None:
    """Every file of a log contains the names of all its producers."""
    live = LiveCluster(tmp_path)
    live.topic()
    live.append(["a"], producer="x" * 1000).raise_for_failures()
    with (
        live.unchanged(),
        pytest.raises(InvalidCallError, match=r"'x+'... has 1,001 characters: a name has at m"),
    ):
        live.append(["a"], producer="x" * 1001)
