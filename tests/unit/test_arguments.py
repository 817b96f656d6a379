"""Command lines: the meaning of words, bad calls, and exit statuses."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import subprocess
import sys
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from stratalog import Failure, FirstAt, OffsetSpec, OperationFailedError, Report
from stratalog.engine.reading.positions import POSITIONS
from stratalog.jobs import arguments, main, run
from stratalog.jobs.arguments import (
    bound,
    check_options,
    count,
    job_parser,
    names,
    numbers,
    pair,
    pair_or_file,
    position,
    time,
)
from stratalog.jobs.progress import TerminalProgress, terminal_progress
from stratalog.jobs.run import JobMain
from stratalog.jobs.topics import main as topics
from stratalog.partitions.errors import (
    CorruptSegmentError,
    InvalidCallError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from tests.unit.jobs_harness import nobody_reads
from tests.unit.test_spark_failures import FromJavaError


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1000", 1000),
        ("0", 0),
        ("0:1000,3:20", {0: 1000, 3: 20}),
        ("earliest", OffsetSpec.EARLIEST),
        ("Earliest-Pending-Upload", OffsetSpec.EARLIEST_PENDING_UPLOAD),
        ("2013-06-01", datetime(2013, 6, 1, tzinfo=UTC)),
        ("first-at:2013-06-01", FirstAt(datetime(2013, 6, 1, tzinfo=UTC))),
        ("2013-06-01T12:30:00.000001Z", datetime(2013, 6, 1, 12, 30, 0, 1, tzinfo=UTC)),
        ("2013-06-01T12:30+02:00", datetime(2013, 6, 1, 12, 30, tzinfo=timezone(timedelta(hours=2)))),
    ],
)
def test_a_bound_is_an_offset_offsets_by_partition_a_position_or_a_time(text: str, wanted: object) -> None:
    assert bound(text) == wanted
    assert type(bound(text)) is type(wanted)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "yesterday", "0:1,", "1:x", "2013-13-01", "²"])
def test_an_invalid_bound_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        bound(text)


def test_every_named_position_of_list_offsets_can_be_written() -> None:
    assert {position(text) for text in POSITIONS} == set(OffsetSpec)
    assert position("2013-06-01") == position("first-at:2013-06-01") == FirstAt("2013-06-01")


def test_lists_pairs_and_times_are_parsed() -> None:
    assert names("a, b") == ["a", "b"]
    assert numbers("1, 20") == [1, 20]
    assert pair("k = v=w") == ("k", " v=w")
    assert pair("k=") == ("k", "")
    assert time("2013-06-01").tzinfo is UTC


@pytest.mark.parametrize(
    ("parse", "text"),
    [(names, "a,,b"), (numbers, "1,x"), (numbers, "-1"), (count, "0"), (count, "1,2"), (pair, "k"), (pair, "=v")],
)
def test_malformed_lists_and_pairs_are_refused(parse: type, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse(text)


@pytest.mark.parametrize(
    "words",
    [
        "mirror t --from k:1",
        "compare t --with k:1",
        "export t --to k:1",
        "kafka_tier topics s3://tier --layout aiven --bootstrap k:1",
    ],
)
def test_a_config_of_kafka_may_come_from_a_file(words: str, tmp_path: Path) -> None:
    """All users of a machine can read command lines."""
    (tmp_path / "password").write_text("hunter2 =@\n")
    job, *rest = [*words.split(), "--config", f"sasl.password=@{tmp_path}/password", "--config", "a=b@c"]
    main = importlib.import_module(f"stratalog.bridges.jobs.{job}").main
    assert main.parser().parse_args(rest).configs == {"sasl.password": "hunter2 =@", "a": "b@c"}


@pytest.mark.parametrize("text", ["sasl.password=@hunter2", "sasl.password=@hunter2\0"])
def test_a_password_that_begins_with_an_at_sign_is_not_repeated(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"file of sasl\.password cannot be read") as refused:
        pair_or_file(text)
    assert "hunter2" not in str(refused.value)


def test_the_cluster_file_comes_from_the_call_the_environment_or_the_usual_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def chosen(*argv: str) -> str:
        return str(job_parser("x", "").parse_args(argv).cluster)

    monkeypatch.delenv(arguments.CLUSTER_VARIABLE, raising=False)
    assert chosen() == arguments.USUAL_CLUSTER_FILE
    monkeypatch.setenv(arguments.CLUSTER_VARIABLE, "mine.toml")
    assert chosen() == "mine.toml"
    assert chosen("--cluster", "this.toml") == "this.toml"


# --------------------------------------------------------------- options that cannot be used together


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("", None),
        ("--deep --heal", None),
        ("--at 0 --place here", None),
        ("--heal", "--heal needs --deep"),
        ("--at 0", "--at needs --place or --any-place"),
        ("--list --deep", "--list and --deep cannot be used together"),
        ("--list --at 0 --any-place", "--list and --at cannot be used together"),
    ],
)
def test_options_are_checked_for_those_they_need_and_those_they_exclude(argv: str, message: str | None) -> None:
    """An argument with its default is absent; 0 is present."""
    parser = job_parser("x", "")
    for flag in ("--deep", "--heal", "--list", "--any-place"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--at", type=int)
    parser.add_argument("--place", action="append", default=[])
    given = parser.parse_args(argv.split())
    with nullcontext() if message is None else pytest.raises(InvalidCallError, match=message):
        check_options(
            given, needs=[("heal", "deep"), ("at", "place", "any_place")], bars=[("list", "deep", "at", "place")]
        )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("verify --discarded --deep", "--discarded and --deep cannot be used together"),
    ],
)
def test_no_option_is_ignored_silently(argv: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([*argv.split(), "--cluster", "none.toml"]) == 2
    assert capsys.readouterr().err == f"ERROR INVALID_REQUEST: {message}\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("topics lst", "(choose from .*); did you mean 'list'\\?$"),
        ("tail t --format jsn", "(choose from .*); did you mean 'json'\\?$"),
        ("tail t --format yaml", "'confluent-avro'\\)$"),
        ("tail t --start yesterday", "FirstAt|first-at:TIME$"),
        ("tail t --start latst", "; did you mean 'latest'\\?$"),
        ("tail t --start 2026-13-01", "argument --start: the text '2026-13-01' is not a time: write"),
        ("topics create t --partitions two", "'two': give a number of 1 or more$"),
        (
            "topics alter-configs t --config a=b",
            "unrecognized arguments: --config a=...; the command create has this option$",
        ),
        ("topics alter-configs t --set a=1 --set a=2", "argument --set: a is given twice$"),
        ("read t --output o --option a=1 --option a=2", "argument --option: a is given twice$"),
        ("append t --input i --option a=1 --option a=2", "argument --option: a is given twice$"),
        ("policy --role reader", "are required: --for$"),
        ("policy --rol reader", "are required: --role, --for; did you mean '--role'\\?$"),
    ],
)
def test_a_hint_names_what_the_call_takes(argv: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    job, *rest = argv.split()
    assert main.main([job, *rest]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.search(message, last), last


def test_a_missing_cluster_file_says_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(arguments.CLUSTER_VARIABLE, raising=False)
    assert main.main(["describe"]) == 2
    assert "give its path (a job: --cluster FILE, or STRATALOG_CLUSTER)" in capsys.readouterr().err


# --------------------------------------------------------------------------------- exit status

DONE = Report("x", [{"partition": 1}], totals={"bytes": 1})
HALF = Report("x", [], [Failure("t-0", "LOG_GAP", "offsets are\nmissing")])


def outcome(result: Report | Exception, *argv: str) -> int:
    def body(_: run.Job) -> Report:
        if isinstance(result, Exception):
            raise result
        return result

    return JobMain("x", "about", lambda parser: None, body)(argv)


@pytest.mark.parametrize(
    "argv",
    [
        ["--cluster", "mine.toml", "--json", "list"],
        ["list", "--cluster", "mine.toml", "--json"],
        ["--cluster", "other.toml", "list", "--cluster", "mine.toml", "--json"],
    ],
)
def test_the_options_of_every_job_may_come_before_a_subcommand_or_after_it(argv: list[str]) -> None:
    given = topics.parser().parse_args(argv)
    assert (given.cluster, given.json) == ("mine.toml", True)


def test_a_subcommand_keeps_the_defaults_of_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATALOG_CLUSTER", "mine.toml")
    given = topics.parser().parse_args(["list"])
    assert (given.cluster, given.json) == ("mine.toml", False)


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (DONE, 0),
        (HALF, 1),
        (CorruptSegmentError("broken"), 1),
        (OperationFailedError("x", HALF), 1),
        (UnknownTopicOrPartitionError("no such topic"), 2),
    ],
)
def test_the_exit_status_tells_done_failed_and_bad_call(
    result: Report | Exception, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome(result) == outcome(result, "--json") == status
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last)["ok"] is (status == 0)


def test_an_error_is_one_line_with_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    outcome(StratalogError("first\nsecond"))
    assert capsys.readouterr().err == "ERROR UNKNOWN_SERVER_ERROR: first\\nsecond\n"


def test_with_json_failures_are_reported_on_standard_error_too(capsys: pytest.CaptureFixture[str]) -> None:
    outcome(HALF, "--json")
    text = capsys.readouterr()
    assert text.err == "FAILED t-0: LOG_GAP: offsets are missing\n"
    assert len(text.out.splitlines()) == 1


def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    outcome(DONE)
    assert capsys.readouterr().out.splitlines()[1:] == ["partition", "---------", "        1"]


@pytest.mark.parametrize("argv", [("--nix",), ("--json", "surplus"), ("--clus", "x")])
def test_an_unknown_argument_is_a_bad_call(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(DONE, *argv) == 2
    assert "stratalog x: error:" in capsys.readouterr().err


def test_a_bug_shows_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        outcome(ZeroDivisionError())


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("Parent path is not a directory: file:/tmp/file\nat java", 1),
        ("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: parket.\nat java", 2),
    ],
)
def test_the_reason_for_which_spark_gives_up_is_one_line(
    message: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark")
    assert outcome(FromJavaError(message), "--json") == status
    text = capsys.readouterr()
    assert text.err == f"ERROR SPARK: {message.splitlines()[0]}\n"
    assert json.loads(text.out)["failures"][0]["code"] == "SPARK"


def test_a_bug_in_a_task_of_spark_shows_its_traceback() -> None:
    pytest.importorskip("pyspark")
    with pytest.raises(FromJavaError):
        outcome(FromJavaError("org.apache.spark.api.python.PythonException: Traceback (most recent call last):"))


@pytest.mark.parametrize(("result", "status"), [(DONE, 0), (HALF, 1), (CorruptSegmentError("broken"), 1)])
def test_the_status_is_the_same_when_nobody_reads_the_report(
    result: Report | Exception, status: int, tmp_path: Path
) -> None:
    with nobody_reads(tmp_path):
        assert outcome(result) == outcome(result, "--json") == status


def test_a_job_that_prints_as_it_goes_ends_when_its_reader_stops(tmp_path: Path) -> None:
    def body(job: run.Job) -> Report:
        job.show(DONE)
        raise AssertionError("it goes on")

    with nobody_reads(tmp_path):
        assert JobMain("x", "", lambda parser: None, body)([]) == 0


def test_numbers_that_json_lacks_are_texts_as_in_sparks_to_json() -> None:
    row = {"a": float("nan"), "b": float("inf"), "c": float("-inf"), "d": 1.5}
    found = json.loads(Report("x", [row], totals=row).to_json(), parse_constant=pytest.fail)
    assert found["rows"] == [found["totals"]] == [{"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": 1.5}]


def test_an_interrupted_job_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    def body(_: run.Job) -> Report:
        raise KeyboardInterrupt

    assert JobMain("x", "", lambda parser: None, body)([]) == 130
    assert "run the job again" in capsys.readouterr().err


def test_the_master_is_spark_submits_own_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert outcome(DONE, "--master", "local[1]") == 2
    assert "put it before the script" in capsys.readouterr().err


class OnEither(run.Job):
    """Records whether its work would run in threads or on executors."""

    def cluster(self) -> str:  # type: ignore[override]
        return "threads"

    def on_spark(self, settings: object = None) -> str:  # type: ignore[override]
        return "executors"


@pytest.mark.parametrize(
    ("argv", "where"),
    [
        ((), "threads"),
        (("--master", "local[2]"), "executors"),
        (("--master", "sc://host:15002", "--runner", "spark"), "executors"),
        (("--master", "local[2]", "--runner", "threads"), "threads"),
    ],
)
def test_a_job_works_on_executors_if_it_has_spark_and_no_other_runner(argv: tuple[str, ...], where: str) -> None:
    assert OnEither("x", job_parser("x", "").parse_args(argv)).on_workers() == where  # type: ignore[comparison-overlap]


# ---------------------------------------------------------------------------- without a JVM


@pytest.mark.parametrize("name", main.JOBS)
def test_every_job_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"usage: stratalog {name}" in text
    assert "spark-submit --properties-file conf/spark-defaults.conf" in text
    assert "Exit status" in text


def test_one_command_has_all_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--help"]) == 0
    assert main.main(["nix"]) == main.main([]) == 2
    assert "replicate" in capsys.readouterr().err


CALLS = [
    ("append", "t", "--input", "x"),
    ("describe",),
    ("topics", "list"),
    ("topics", "create", "t", "--value", "a INT"),
    ("topics", "alter", "t", "--value", "a INT"),
    ("offsets", "t"),
    ("read", "t"),
    ("tier", "--topics", "t", "--master", "local[1]"),
]
IN_ONE_PROCESS = """
import json, sys
from stratalog.jobs.main import main
for argv in json.loads(sys.argv[1]):
    print(main([*argv, "--cluster", sys.argv[2]]), "pyspark" in sys.modules)
"""


@pytest.mark.slow
def test_a_wrong_cluster_file_is_found_before_spark_is_loaded(tmp_path: Path) -> None:
    called = [sys.executable, "-c", IN_ONE_PROCESS, json.dumps(CALLS), str(tmp_path / "none.toml")]
    done = subprocess.run(called, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == len(CALLS) * ["2 False"]
    found = done.stderr.splitlines()
    assert len(found) == len(CALLS)
    assert [line for line in found if not line.startswith("ERROR INVALID_REQUEST: cluster file")] == []


# ----------------------------------------------------------------------------------- progress


def test_without_a_terminal_there_is_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    progress = terminal_progress()
    progress.start("tier", 2, "partitions")
    progress.advance(10)
    progress.finish()
    assert capsys.readouterr().err == ""


def test_on_a_terminal_partitions_and_bytes_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    progress = TerminalProgress(sys.stderr)
    progress.start("tier", 2, "partitions")
    progress.advance(1_500_000)
    progress.advance(500_000)
    progress.finish()
    text = capsys.readouterr().err
    assert "2/2" in text
    assert "partitions" in text
    assert "2.0 MB" in text


@pytest.mark.parametrize("ended", [KeyboardInterrupt(), StratalogError("disk full"), DONE], ids=repr)
def test_the_terminal_is_restored_before_anything_is_printed(
    ended: BaseException | Report, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(run, "terminal_progress", lambda: TerminalProgress(sys.stderr))

    def body(job: run.Job) -> Report:
        job.progress.start("tier", 2, "partitions")
        if isinstance(ended, Report):
            job.show(ended)
            return ended
        raise ended

    JobMain("x", "", lambda parser: None, body)([])
    text = capsys.readouterr()
    shown_again = text.err.rpartition("\x1b[?25h")[2]
    assert "\x1b[?25l" in text.err
    assert "\x1b[?25l" not in shown_again
    assert "2/2" not in shown_again
    if isinstance(ended, Report):
        shown = [line.partition("+00:00 ")[2] or line for line in text.out.splitlines()]  # the text after the time
        assert shown == 2 * str(DONE).splitlines()
    else:
        assert shown_again.splitlines()[-1].startswith(("interrupted", "ERROR"))


def test_no_job_hides_a_module_of_the_standard_library() -> None:
    """spark-submit puts the folder of the script first on ``sys.path``."""
    scripts = {path.stem for path in Path(arguments.__file__).parent.rglob("*.py")}
    assert scripts & set(sys.stdlib_module_names) == set()


@pytest.mark.parametrize("name", main.JOBS)
def test_help_lists_the_own_options_of_a_job_before_those_of_every_job(name: str) -> None:
    text = main.job_of(name).parser().format_help()
    body = text[text.index("\noptions:") :]
    assert "``" not in text
    assert body.index("\ncommon options:") == body.rindex(":\n  --cluster FILE") - len("\ncommon options")
    assert "\n\n" not in body[body.index("\ncommon options:") : body.index("  --json")]
    own = [
        action for action in main.job_of(name).parser()._actions if action.option_strings and action.dest != "help"
    ]
    common = {"cluster", "cluster_key_file", "credentials", "json", "master", "runner"}
    usage = text.partition("\n\n")[0]
    for action in own:
        if action.dest not in common:
            assert usage.index(action.option_strings[0]) < usage.index("--cluster FILE"), action.dest
