"""``stratalog JOB ...``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stratalog
from stratalog.jobs.main import JOBS, main
from stratalog.partitions.version import VERSION
from tests.unit.cluster_harness import LiveCluster

ROOT = Path(__file__).parents[2]


def test_every_module_with_a_command_line_is_a_job() -> None:
    paths = [path for folder in ("jobs", "bridges/jobs") for path in (ROOT / folder).glob("*.py")]
    found = {
        path.stem for path in paths if re.search(r"^(def main\(argv|main = )", path.read_text(), re.MULTILINE)
    }
    assert found - set(JOBS) == {"main", "jars", "java"}  # the last two prepare a machine
    assert set(JOBS) <= found


def test_help_has_a_line_for_each_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    for job in JOBS:
        assert sum(line.startswith(f"  {job} ") for line in lines) == 1


@pytest.mark.parametrize("argv", [["version"], ["--version"]])
def test_it_says_its_version(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    assert capsys.readouterr().out == f"stratalog {stratalog.__version__}\n"
    assert stratalog.__version__ == VERSION


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["help"], "stratalog help JOB explains a job"),
        (["help", "tier"], "usage: stratalog tier"),
        (["help", "topics", "create"], "usage: stratalog topics create"),
    ],
)
def test_help_explains_a_job(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    assert message in capsys.readouterr().out


def test_the_door_shows_public_names_alone() -> None:
    assert [name for name in dir(stratalog) if name.startswith("_")] == ["__version__"]
    assert {"Cluster", "OperationFailedError", "StratalogError"} <= {*dir(stratalog)}
    assert {"TYPE_CHECKING", "engine", "partitions"}.isdisjoint(dir(stratalog))


@pytest.mark.parametrize(
    ("argv", "message"), [([], "stratalog JOB ..."), (["heath"], "no job 'heath'; did you mean 'health'?")]
)
def test_another_name_is_a_bad_call(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("describe trips", "unrecognized arguments: trips; name topics with --topics A,B"),
        ("describe --topic trips", "unrecognized arguments: --topic trips; did you mean '--topics'?"),
        (
            "mirror t --from k:1 --thorttle=1MB",
            "unrecognized arguments: --thorttle=...; did you mean '--throttle'?",
        ),
        ("groups describe g --topic t", "unrecognized arguments: --topic t; did you mean '--topics'?"),
        ("replicate --throttle 1MB", "unrecognized arguments: --throttle 1MB\n"),
        ("quorum describe trips", "unrecognized arguments: trips\n"),
    ],
)
def test_arguments_that_are_not_known_are_answered_with_the_nearest(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split(" ")) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "config",
    [
        "--config sasl.password:hunter2",
        "--confg sasl.password=hunter2",
        "--confg=sasl.password=hunter2",
        "--config a=b ssl.key.pem=hunter2=",
    ],
)
def test_an_error_about_a_config_does_not_repeat_its_value(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(f"mirror t --from k:1 {config}".split(" ")) == 2
    assert "hunter2" not in capsys.readouterr().err


# ------------------------------------------------------------------------------------- completion


def completed(line: str, folder: Path) -> list[str]:
    """The completions that the shell gets for a line."""
    pytest.importorskip("argcomplete")
    out = folder / "completed"
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(out)}
    asked |= {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    called = [sys.executable, "-m", "stratalog.jobs.main"]
    subprocess.run(called, env={**os.environ, **asked}, check=True, capture_output=True)
    return out.read_text().split("\n")


@pytest.mark.slow
def test_the_shell_completes_jobs_their_options_and_topics(tmp_path: Path) -> None:
    assert set(completed("stratalog t", tmp_path)) == {"tail", "tier", "topics", "transactions"}
    assert completed("stratalog tier --ev", tmp_path) == ["--every"]
    assert set(completed("stratalog elect --un", tmp_path)) == {"--unclean"}
    assert completed("stratalog topics desc", tmp_path) == ["describe"]
    live = LiveCluster(tmp_path, on_disk=True)
    for name in ("flights", "flags", "trips"):
        live.topic(name)
    at = f"--cluster {live.file}"
    assert set(completed(f"stratalog describe {at} --topics fl", tmp_path)) == {"flights", "flags"}
    assert completed(f"stratalog describe {at} --topics flights,t", tmp_path) == ["flights,trips"]
    assert completed(f"stratalog tail {at} tr", tmp_path) == ["trips"]
    assert completed("stratalog tail --cluster none.toml t", tmp_path) == [""]


@pytest.mark.slow
def test_usage_says_how_the_job_was_called(tmp_path: Path) -> None:
    def usage(*argv: str, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, *argv, "--help"], capture_output=True, env={**os.environ, **env}, text=True
        )
        return done.stdout.splitlines()[0]

    script = str(ROOT / "jobs" / "tier.py")
    assert usage("-m", "stratalog.jobs.main", "tier").startswith("usage: stratalog tier [-h]")
    assert usage("-m", "stratalog.jobs.tier").startswith("usage: python -m stratalog.jobs.tier [-h]")
    assert usage(script).startswith(f"usage: {script} [-h]")
    assert usage(script, PYSPARK_GATEWAY_PORT="1").startswith(f"usage: spark-submit {script} ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["topics"],
            "required: COMMAND; COMMAND is one of list, describe, create, create-partitions, alter,",
        ),
        (["quorum", "--json"], "required: COMMAND; COMMAND is one of "),
        (["read", "--topic", "t"], "give TOPICS as an argument, without an option"),
        (["offsets", "--topic=t"], "give TOPICS as an argument, without an option"),
    ],
)
def test_a_call_that_lacks_something_is_answered_with_what_it_takes(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert says in capsys.readouterr().err
