"""The zip for executors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.jobs import package

USE = """
import contextlib
import io
import sys
sys.path.insert(0, sys.argv[1])
import stratalog.jobs.package
from stratalog.jobs import main
from stratalog import Cluster
from stratalog.jobs.jars import pinned_jars
print(stratalog.__file__, len(pinned_jars()) > 0)
for job in main.JOBS:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as output:
        main.main([job, "--help"])
    if not output.getvalue():
        sys.exit(f"{job} has no help")
sys.exit(stratalog.jobs.package.main(["--to", sys.argv[2]]))
"""


@pytest.mark.nightly
def test_the_zip_is_all_that_a_process_needs_and_can_rebuild_itself(tmp_path: Path) -> None:
    """This is also true under spark-submit, where the driver, too, has the package from the zip."""
    first, second = tmp_path / "stratalog.zip", tmp_path / "again.zip"
    assert package.main(["--to", str(first)]) == 0
    command = [sys.executable, "-c", USE, str(first), str(second)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"{first}/stratalog/__init__.py True"
    assert second.read_bytes() == first.read_bytes()


def test_a_zip_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert package.main(["--to", str(tmp_path / "none" / "stratalog.zip")]) == 2
    assert capsys.readouterr().err.startswith(f"ERROR INVALID_REQUEST: --to {tmp_path}/none/stratalog.zip: ")
    (tmp_path / "folder").mkdir()
    assert package.main(["--to", str(tmp_path / "folder")]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder"]
