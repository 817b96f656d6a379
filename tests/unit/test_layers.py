"""Imports go downwards only, decisions import no IO, and one place knows Spark (design, section 2)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import stratalog
from stratalog import errors as stratalog_errors
from stratalog.partitions import errors as errors_of_partitions

ROOT = Path(__file__).resolve().parents[2]

MAY_IMPORT = {
    "partitions": {"partitions"},
    "tiering": {"tiering", "partitions"},
    "snapshots": {"snapshots", "partitions"},
    "engine": {"engine", "tiering", "snapshots", "partitions"},
    "stratalog": {"bridges", "jobs", "engine", "partitions"},
    "jobs": {"jobs", "stratalog", "engine", "tiering", "snapshots", "partitions"},
    "bridges": {"bridges", "jobs", "stratalog", "engine", "tiering", "snapshots", "partitions"},
    "conf": {"conf"},
}
"""The allowed imports by folder. ``stratalog`` is the public package, and contains links to the others."""

FLOORS = (
    *("config", "state", "metadata", "quorum", "replication", "driver", "brokers", "replicas", "records"),
    *(
        "reading",
        "upkeep.memory",
        "upkeep.tiering",
        "upkeep.verification",
        "upkeep.retention",
        "upkeep.replication",
    ),
    *(
        "upkeep.healing",
        "upkeep.snapshots",
        "upkeep.erasing",
        "upkeep.restoring",
        "upkeep.maintenance",
        "admin",
        "health",
        "spark",
        "cluster",
    ),
)
"""The folders of ``engine`` from the lowest to the highest. A module imports only from its own layer and from
lower ones, without exceptions: an import inside a function counts like any other, and so does an import for types
alone. The last layer is the public one.
"""

PYSPARK_FOLDERS = ("jobs", "engine/spark", "bridges/live")
"""The folders that may import pyspark; others may name its types under ``if TYPE_CHECKING``."""

PURE = (
    *(
        f"partitions/{name}.py"
        for name in (
            *("lineage", "listing", "producers", "retention", "paths", "offsets", "records", "register"),
            *("rewrites/merge", "rewrites/compaction", "removal", "transactions"),
        )
    ),
    *("partitions/errors.py", "partitions/identity.py", "tiering/plan.py", "tiering/schedule.py"),
    *(
        f"tiering/{name}.py"
        for name in ("divergence", "remote_log", "remote_change", "remote_objects", "remote_segment", "statistics")
    ),
    "engine/metadata/*.py",
    *(f"snapshots/{name}.py" for name in ("snapshot_id", "policy", "start_offset", "erasure")),
    *("snapshots/state_machine.py", "engine/state/*.py"),
    *(f"engine/replicas/{name}.py" for name in ("out_of_range", "offsets_for_epoch")),
    *(f"engine/reading/{name}.py" for name in ("admission", "stream_offsets", "stream_options", "stream_tasks")),
)
IMPURE = {
    *("pyspark", "py4j", "botocore", "fsspec", "deltalake", "pyarrow.dataset", "pyarrow.fs", "pyarrow.parquet"),
    *("os", "io", "pathlib", "shutil", "tempfile", "subprocess", "socket", "threading", "concurrent"),
    *("time", "secrets", "stratalog.partitions.clock.SystemClock", "stratalog.partitions.store.opening"),
}
MAY_GO_BY_THE_LAST_KNOWN_IMAGE = {
    *("engine/admin/quorum.py", "engine/brokers/format.py", "engine/cluster/__init__.py"),
    "engine/cluster/recorded.py",
    *("engine/driver/known_image.py", "engine/records/coordinator.py", "engine/upkeep/memory/runs.py"),
    *("engine/brokers/probe.py", "engine/records/unknown_fields.py"),
}
"""These modules are outside the quorum: an operation passes on the image that it has read. These need no storage,
for the stated reasons. A probe that runs beside the read of the metadata compares both afterwards, and added
fields are in the image of their commit.
"""
PORTS = {"MetadataClient", "Storage", "Execution", "Memory", "Clock"}
MOST_PORTS = 4
HOLD_ALL_PORTS = {
    "engine/driver/opening.py": "makes them",
    "engine/brokers/format.py": "makes them of a new cluster",
    "engine/spark/range_stream.py": "opens the cluster again in another process",
    "engine/spark/stream_source.py": "opens the cluster in Spark's process",
    "engine/spark/stream_sink.py": "opens the cluster in Spark's process",
    "engine/spark/stream_writer.py": "opens the cluster in Spark's process",
    "engine/upkeep/restoring/restore.py": "opens the cluster that it makes",
    "engine/upkeep/restoring/drill.py": "opens the cluster that it makes",
    "bridges/kafka.py": "methods of Cluster",
    "bridges/rights.py": "methods of Cluster",
    "bridges/state.py": "methods of Cluster",
    "bridges/live/stream.py": "opens the cluster again in another process",
}
"""Modules outside the public layer (``engine/cluster``) that hold all ports of a cluster, with the reasons."""
LONGEST_FILE = 500

MODULES = sorted(path.relative_to(ROOT) for layer in MAY_IMPORT for path in (ROOT / layer).rglob("*.py"))


@cache
def tree(module: Path) -> ast.Module:
    """The syntax tree of a module, parsed once."""
    return ast.parse((ROOT / module).read_text(encoding="utf-8"))


@cache
def imported(module: Path, *, for_types: bool = True) -> tuple[str, ...]:
    """The cached result of ``imports``."""
    return tuple(imports(tree(module), for_types=for_types))


def imports(node: ast.AST, *, for_types: bool = True) -> Iterator[str]:
    """All imported dotted names, including those in function bodies; without ``for_types`` without those for the
    type checker alone."""
    for child in statements(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"line {child.lineno}: relative import"
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif for_types or not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from imports(child, for_types=for_types)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """The direct substatements, including handlers and cases. Expressions contain no imports, and a module has ten
    times as many expressions as statements.
    """
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        inside = getattr(node, field, ())
        if isinstance(inside, list):
            yield from inside


def under(name: str, packages: set[str]) -> bool:
    """Whether a dotted name is one of ``packages`` or inside one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def layer(name: str) -> str:
    """The folder of a dotted name of this project."""
    folder = [*name.split("."), ""][1]
    return folder if folder in MAY_IMPORT else "stratalog"


@pytest.mark.slow
def test_imports_go_downwards() -> None:
    offenders = [
        (str(module), name)
        for module in MODULES
        for name in imported(module)
        if under(name, {"stratalog"}) and layer(name) not in MAY_IMPORT[module.parts[0]]
    ]
    assert offenders == []


def floor(name: str) -> int:
    """The layer of a dotted name of ``engine``, counted from below."""
    inside = name.removeprefix("stratalog.engine.")
    return next((number for number, one in enumerate(FLOORS) if under(inside, {one})), len(FLOORS))


def test_imports_inside_the_engine_go_down_its_floors() -> None:
    offenders = [
        (str(module), name)
        for module in MODULES
        if module.parts[0] == "engine"
        for name in imported(module)
        if under(name, {"stratalog.engine"})
        and floor(name) > floor(".".join(("stratalog", *module.with_suffix("").parts)))
    ]
    assert offenders == []


def test_imports_in_functions_and_for_types_are_judged() -> None:
    source = """
        def function():
            from stratalog.engine.spark import runner
        if TYPE_CHECKING:
            from stratalog.engine.cluster import Cluster
    """
    found = list(imports(ast.parse(textwrap.dedent(source))))
    assert found == ["stratalog.engine.spark.runner", "stratalog.engine.cluster.Cluster"]
    assert floor("stratalog.engine.admin.topics") < floor(found[0]) < floor(found[1])


def test_every_folder_of_the_engine_is_a_floor_and_no_module_is_outside() -> None:
    inside = [module.relative_to("engine") for module in MODULES if module.parts[0] == "engine"]
    folders = {".".join(module.parent.parts) for module in inside if len(module.parts) > 1}
    assert folders == {*FLOORS, "upkeep"}
    loose = [module.stem for module in inside if len(module.parts) == 1]
    assert loose == ["__init__"]
    assert [module for module in inside if str(module.parent) == "upkeep"] == [Path("upkeep/__init__.py")]


@pytest.mark.slow
def test_what_a_log_is_does_not_know_how_its_files_are_replaced() -> None:
    for module in MODULES:
        if module.parts[0] == "partitions" and module.parts[1] != "rewrites":
            assert not [name for name in imported(module) if ".rewrites" in name], module


def test_only_jobs_one_folder_of_the_engine_and_one_bridge_import_pyspark() -> None:
    others = [module for module in MODULES if not any(map(module.is_relative_to, PYSPARK_FOLDERS))]
    offenders = [
        (str(module), name)
        for module in others
        for name in imported(module, for_types=False)
        if under(name, {"pyspark", "py4j", "delta"})
    ]
    assert offenders == []


def test_decisions_import_no_io_and_no_clock() -> None:
    """A generator must be passed in, because the module's own functions share an unseeded one."""
    pure = [module for module in MODULES if any(map(module.match, PURE))]
    offenders = [(str(module), name) for module in pure for name in imported(module) if under(name, IMPURE)]
    offenders += [
        (str(module), f"random.{node.attr}")
        for module in pure
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "random"
        and node.attr != "Random"
    ]
    assert offenders == []
    assert [pattern for pattern in PURE if not any(module.match(pattern) for module in pure)] == []


def test_nobody_reaches_behind_the_door() -> None:
    """The context of a cluster is private: other parts of the code are given one, or open one."""
    outside = [
        *MODULES,
        *(path.relative_to(ROOT) for name in ("bench", "demo") for path in (ROOT / name).rglob("*.py")),
    ]
    behind = re.compile(r"(?<!\bself)\._ports\b")
    assert [str(module) for module in outside if behind.search((ROOT / module).read_text(encoding="utf-8"))] == []


def test_only_the_door_holds_all_ports_and_no_function_takes_more_than_four() -> None:
    holders, wide = set(), []
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Name):
                if node.id == "Ports" and path.parts[:2] != ("engine", "cluster"):
                    holders.add(str(path))
            elif isinstance(node, ast.FunctionDef):
                given = (*node.args.args, *node.args.kwonlyargs)
                types = [ast.unparse(each.annotation) for each in given if each.annotation is not None]
                if sum(each in PORTS for each in types) > MOST_PORTS:
                    wide.append(f"{path}: {node.name}")
    assert holders == set(HOLD_ALL_PORTS)
    assert wide == []


def test_an_image_that_nobody_passed_is_no_hidden_input() -> None:
    users = {str(module) for module in MODULES if "last_known" in (ROOT / module).read_text(encoding="utf-8")}
    outside = {user for user in users if not user.startswith("engine/quorum/")}
    assert outside == MAY_GO_BY_THE_LAST_KNOWN_IMAGE


def test_no_two_classes_have_one_name() -> None:
    """A duplicate name leads a reader to the wrong module."""
    places: dict[str, list[str]] = {}
    for module in MODULES:
        for node in tree(module).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(module))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_a_package_names_its_modules() -> None:
    """A package's docstring must lead a reader to each module. (A job has the name of its command.)"""
    docs = {module.parent: ast.get_docstring(tree(module)) for module in MODULES if module.name == "__init__.py"}
    rooms = [module for module in MODULES if module.stem != "__init__" and module.parts[0] != "jobs"]
    assert [str(room) for room in rooms if not re.search(rf"\b{room.stem}\b", docs[room.parent] or "")] == []


def test_no_file_grows_too_long() -> None:
    lines = {str(module): len((ROOT / module).read_text(encoding="utf-8").splitlines()) for module in MODULES}
    assert {module: count for module, count in lines.items() if count > LONGEST_FILE} == {}


HEAVY = ("pyspark", "py4j", "deltalake", "botocore", "pyarrow", "numpy")


def loaded(code: str, *argv: str) -> set[str]:
    """The modules of ``HEAVY`` that a separate process has loaded after running the code."""
    code += f"\nimport sys; print(*set({HEAVY}) & set(sys.modules))"
    command = [sys.executable, "-c", code, *argv]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.slow
def test_the_door_and_a_job_that_explains_itself_load_nothing_that_takes_long() -> None:
    assert loaded("import stratalog") == set()
    explain = "from stratalog.jobs.main import JOBS, main\nfor job in JOBS: assert main([job, '--help']) == 0"
    assert loaded(explain) == set()


USE = """
import sys
from stratalog import Cluster
cluster = Cluster.format(sys.argv[1])
cluster.topics.create("t", partitions=1, replication_factor=1)
Cluster.open(sys.argv[1]).describe().raise_for_failures()
"""
TIER = """
import pyarrow as pa
configs = {"remote.storage.enable": "true", "segment.bytes": "1", "segment.merge.min.files": "2"}
cluster.topics.alter_configs("t", configs)
headers = pa.nulls(1, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
columns = {"timestamp": pa.array([1], pa.timestamp("us", tz="UTC")), "key": [b"k"], "value": [b"v"]}
for _ in range(2):
    rows = pa.RecordBatch.from_pydict({**columns, "headers": headers})
    cluster.append_batches("t", {0: [rows]}).raise_for_failures()
assert cluster.tier().raise_for_failures().totals["uploaded_files"] == 2
"""


@pytest.mark.parametrize(("use", "tables"), [(USE, set()), (USE + TIER, {"deltalake"})], ids=["topics", "tables"])
@pytest.mark.slow
def test_a_cluster_on_folders_loads_no_client_of_object_storage_and_delta_rs_with_the_first_table(
    use: str, tables: set[str], tmp_path: Path
) -> None:
    for root in ("b1", "remote"):
        (tmp_path / root).mkdir()
    file = tmp_path / "cluster.toml"
    file.write_text('[cluster]\nid = "c"\nremote = "remote"\nvoters = [1]\n[[brokers]]\nid = 1\nlog_dir = "b1"\n')
    assert loaded(use, str(file)) == {"pyarrow", "numpy"} | tables


def test_every_name_of_the_door_is_there() -> None:
    assert [name for name in stratalog.__all__ if getattr(stratalog, name).__name__ != name] == []
    assert set(stratalog.__all__) <= set(dir(stratalog))
    with pytest.raises(AttributeError, match="module 'stratalog' has no attribute 'cluster_of'"):
        stratalog.__getattr__("cluster_of")


def test_every_error_that_a_caller_may_catch_is_in_one_module() -> None:
    """The classes of ``partitions.errors``, and the class of reports."""
    declared = {name: one for name, one in vars(errors_of_partitions).items() if name.endswith("Error")}
    named = {name: one for name, one in vars(stratalog_errors).items() if not name.startswith("_")}
    assert named == {**declared, "OperationFailedError": stratalog.OperationFailedError}
