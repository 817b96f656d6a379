"""``stratalog JOB ...``."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.jobs.main import JOBS, main

FOLDER = Path(__file__).parents[2] / "jobs"


def test_every_module_with_a_command_line_is_a_job() -> None:
    found = {path.stem for path in FOLDER.glob("*.py") if "def main(argv" in path.read_text()}
    assert found - set(JOBS) == {"main", "jars", "java"}  # the last two prepare a machine
    assert len(set(JOBS)) == len(JOBS)


def test_help_has_a_line_for_each_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    for job in JOBS:
        assert sum(line.startswith(f"  {job} ") for line in lines) == 1


@pytest.mark.parametrize(
    ("argv", "said"), [([], "stratalog JOB ..."), (["heath"], "no job 'heath'; did you mean 'health'?")]
)
def test_another_name_is_a_bad_call(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert said in capsys.readouterr().err
