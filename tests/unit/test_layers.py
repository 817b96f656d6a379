"""Imports go downwards only, decisions import no IO, and one place knows Spark (design, section 2)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MAY_IMPORT = {
    "partitions": {"partitions"},
    "tiering": {"tiering", "partitions"},
    "snapshots": {"snapshots", "partitions"},
    "engine": {"engine", "tiering", "snapshots", "partitions"},
    "jobs": {"jobs", "engine", "tiering", "snapshots", "partitions"},
    "conf": {"conf"},
}
PYSPARK_FOLDERS = ("jobs", "engine/spark")
"""Where pyspark may be imported; elsewhere its types may be named, under ``if TYPE_CHECKING``."""

PURE = (
    *(
        f"partitions/{name}.py"
        for name in (
            *("lineage", "listing", "producers", "merge", "retention", "paths", "offsets", "records", "register"),
        )
    ),
    *("partitions/errors.py", "partitions/identity.py", "tiering/plan.py", "tiering/schedule.py"),
    *(f"tiering/{name}.py" for name in ("divergence", "remote_log", "remote_change", "remote_objects", "expiry")),
    "engine/metadata/*.py",
    *(f"snapshots/{name}.py" for name in ("snapshot_id", "policy", "start_offset", "messages")),
    *("snapshots/state_machine.py", "engine/state/*.py"),
    *(f"engine/reading/{name}.py" for name in ("out_of_range", "offsets_for_epoch")),
    *(f"engine/reading/{name}.py" for name in ("admission", "stream_offsets", "stream_options", "stream_tasks")),
)
IMPURE = {
    *("pyspark", "py4j", "botocore", "fsspec", "deltalake", "pyarrow.dataset", "pyarrow.fs", "pyarrow.parquet"),
    *("os", "io", "pathlib", "shutil", "tempfile", "subprocess", "socket", "threading", "concurrent"),
    *("time", "secrets", "partitions.clock.SystemClock", "partitions.store.opening"),
}
LONGEST_FILE = 500

MODULES = sorted(path.relative_to(ROOT) for layer in MAY_IMPORT for path in (ROOT / layer).rglob("*.py"))


def tree(module: Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse((ROOT / module).read_text(encoding="utf-8"))


@cache
def imported(module: Path, *, for_types: bool = True) -> tuple[str, ...]:
    """What ``imports`` tells of a module; it is parsed once."""
    return tuple(imports(tree(module), for_types=for_types))


def imports(node: ast.AST, *, for_types: bool = True) -> Iterator[str]:
    """Every dotted name that is imported, in function bodies too; without ``for_types`` not those that
    only a type checker sees."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"line {node.lineno}: relative import"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif for_types or not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
        for child in ast.iter_child_nodes(node):
            yield from imports(child, for_types=for_types)


def under(name: str, packages: set[str]) -> bool:
    """Whether a dotted name is one of ``packages`` or inside one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_go_downwards(module: Path) -> None:
    upwards = set(MAY_IMPORT) - MAY_IMPORT[module.parts[0]]
    assert [name for name in imported(module) if under(name, upwards)] == []


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_only_jobs_and_one_folder_of_the_engine_import_pyspark(module: Path) -> None:
    if not any(module.is_relative_to(folder) for folder in PYSPARK_FOLDERS):
        names = imported(module, for_types=False)
        assert [name for name in names if under(name, {"pyspark", "py4j", "delta"})] == []


@pytest.mark.parametrize("module", [m for m in MODULES if any(m.match(p) for p in PURE)], ids=str)
def test_decisions_import_no_io_and_no_clock(module: Path) -> None:
    assert [name for name in imported(module) if under(name, IMPURE)] == []
    # A generator is passed in: the module's own functions share one that nobody seeded.
    uses = [
        n.attr for n in ast.walk(tree(module)) if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "random"
    ]
    assert set(uses) <= {"Random"}


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_no_file_grows_too_long(module: Path) -> None:
    assert len((ROOT / module).read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE


def test_importing_the_engine_loads_no_spark() -> None:
    code = "import sys, engine; sys.exit(', '.join({'pyspark', 'py4j'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
