"""``python -m tests.coverage``: branch coverage of the product by the tests of ``make test``.

Processes that tests start are measured, too, unless they are killed. The data is in ``.cache/coverage``;
``coverage html --rcfile=settings`` shows the uncovered lines there. The last line is the percentage.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / ".cache" / "coverage"
PRODUCT = sorted(each.name for each in (ROOT / "stratalog").iterdir() if each.is_symlink())
SETTINGS = f"""[run]
branch = true
parallel = true
patch = subprocess
data_file = {DATA}/data
source =
{"".join(f"    {ROOT / folder}{chr(10)}" for folder in PRODUCT)}"""
"""The file's paths are absolute, because processes that tests start have other working directories."""
STAGES = (("-n", "2", "-m", "not spark and not s3"), ("-n", "2", "--dist", "loadfile", "-m", "spark or s3"))


def main() -> int:
    """Run the stages of ``make test`` under coverage. Returns exit status 1 if a test failed."""
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir(parents=True)
    settings = DATA / "settings"
    settings.write_text(SETTINGS, encoding="utf-8")

    def coverage(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        full = [sys.executable, "-m", "coverage", command, f"--rcfile={settings}", *arguments]
        return subprocess.run(
            full, cwd=ROOT, check=False, text=True, stdout=subprocess.PIPE if command == "report" else None
        )

    statuses = [coverage("run", "-m", "pytest", *stage).returncode for stage in STAGES]
    coverage("combine", "--quiet").check_returncode()
    report = coverage("report", "--precision=2", "--format=total")
    report.check_returncode()
    print(f"{report.stdout.strip()} percent of lines and branches")
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main())
