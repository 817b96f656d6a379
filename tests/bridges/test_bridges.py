"""The core without its bridges, and a third-party bridge, each in a separate process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.engine.config.bridges import SHIPPED
from tests.core_alone import without_bridges
from tests.pages import blocks, make_cluster_file


def run(folder: Path, *words: str, path: Path) -> subprocess.CompletedProcess[str]:
    """A command of this Python, with ``path`` in place of the installed package."""
    environment = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout without the folder of the bridges."""
    folder = tmp_path_factory.mktemp("core")
    without_bridges(folder)
    return folder


@pytest.mark.slow
def test_the_core_works_without_its_bridges(core: Path, tmp_path: Path) -> None:
    """Run the example of the pages, and every job of the core."""
    make_cluster_file("docs/without-spark.md", tmp_path)
    example = "\n".join(blocks("docs/without-spark.md", "python"))
    assert (done := run(tmp_path, "-c", example, path=core)).returncode == 0, done.stderr
    jobs = "from stratalog.jobs.main import GROUPS, main\nimport sys\n"
    jobs += "sys.exit(sum(main([job, '--help']) for group in GROUPS.values() for job in group))"
    assert (done := run(tmp_path, "-c", jobs, path=core)).returncode == 0, done.stderr


@pytest.mark.slow
def test_the_core_s_tests_import_none_of_a_bridge(core: Path) -> None:
    tests = {path: path.read_text(encoding="utf-8") for path in (core / "tests").rglob("*.py")}
    importing = re.compile(r"^from (?:stratalog|tests)\.bridges\b", re.MULTILINE)
    assert [
        path.name for path, text in tests.items() if importing.search(text) and path.parent.name == "unit"
    ] == []


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "install"),
    [
        ("mirror", "pip install 'stratalog[kafka,serve]'"),
        ("serve", "pip install 'stratalog[kafka,serve]'"),
        ("report", "pip install stratalog"),
        ("policy", "pip install stratalog"),
    ],
)
def test_a_bridge_that_is_not_installed_is_answered_with_the_way_to_install_it(
    core: Path, tmp_path: Path, name: str, install: str
) -> None:
    done = run(tmp_path, "-m", "stratalog.jobs.main", name, path=core)
    assert done.returncode == 2
    assert re.search(rf"the bridge '\w+' is not installed: {re.escape(install)}", done.stderr)
    make_cluster_file("docs/without-spark.md", tmp_path)
    call = f"from stratalog import Cluster; Cluster.format('cluster.toml').{name}('x')"
    done = run(tmp_path, "-c", call, path=core)
    assert done.stderr.splitlines()[-1].endswith(install)


def test_the_methods_of_the_bridges_are_operations_of_the_door_but_those_that_only_answer() -> None:
    """The manifest has their names."""
    for bridge in SHIPPED:
        if bridge.home:
            methods = {
                name: one for name, one in vars(bridge.load(bridge.home)).items() if not name.startswith("_")
            }
            assert set(methods) == set(bridge.methods)
            plain = {name for name, one in methods.items() if not hasattr(one, "__wrapped__")}
            assert plain <= {"serve", "serve_page", "policy", "read_live", "for_each_live_batch"}
        for job in bridge.jobs.values():
            assert bridge.load(f"{job.module}:main")
        for place in bridge.formats.values():
            assert callable(bridge.load(place))


@pytest.fixture
def offered(tmp_path: Path) -> Path:
    """The bridge of the documentation, installed together with one that cannot be loaded and one that is not a
    bridge."""
    folder = tmp_path / "site"
    folder.mkdir()
    [example] = blocks("docs/bridges.md", "python")
    (folder / "stratalog_counts.py").write_text(example)
    (folder / "broken_bridge.py").write_text("raise RuntimeError('no licence')\nNONE = 1")
    about = folder / "counts-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: counts\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[stratalog.bridges]\ncounts = stratalog_counts:BRIDGE\nbroken = broken_bridge:NONE\nnone = json:dumps\n"
    )
    return folder


@pytest.mark.slow
def test_a_bridge_of_a_third_party_is_a_method_a_job_and_a_format(offered: Path, tmp_path: Path) -> None:
    make_cluster_file("docs/without-spark.md", tmp_path)
    program = """
from stratalog import Cluster
cluster = Cluster.format("cluster.toml")
cluster.topics.create("t", partitions=1)
cluster.produce("t", [{"key": key, "value": b"\\x93\\x01\\x02\\x03"} for key in "aab"])
print([(row["key"], row["records"]) for row in cluster.count_keys("t", 0).rows])
"""
    done = run(tmp_path, "-c", program, path=offered)
    assert done.stdout.splitlines() == ["[('a', 2), ('b', 1)]"], done.stderr
    assert "the bridge broken cannot be loaded: RuntimeError: no licence" in done.stderr
    assert "the bridge none is a function, not a Bridge" in done.stderr
    shown = run(
        tmp_path, "-m", "stratalog.jobs.main", "count_keys", "t", "--cluster", "cluster.toml", path=offered
    )
    assert re.search(r"^a +2$", shown.stdout, re.MULTILINE), shown
    tail = (
        "tail",
        "t",
        "--cluster",
        "cluster.toml",
        "--start",
        "earliest",
        "--format",
        "msgpack",
        "--schema",
        "none",
    )
    done = run(tmp_path, "-m", "stratalog.jobs.main", *tail, path=offered)
    assert '"value": [1, 2, 3]' in done.stdout, done
    done = run(tmp_path, "-m", "stratalog.jobs.main", "--help", path=offered)
    assert "count_keys      count the records of each key" in done.stdout


BROKEN_HOMES = {
    "raises": ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
    "is_no_python": ("class Home", "SyntaxError: "),
    "needs_another": ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    "is_not_there": ("NOTHING = 1", "AttributeError: "),
    "is_no_class": ("Home = 7", "TypeError: "),
    "is_final": ("Home = bool", "TypeError: "),
    "is_a_cluster": ("from stratalog.engine.cluster import Cluster\nclass Home(Cluster): pass", "TypeError: "),
    "refuses": ("class Home:\n    def __init_subclass__(cls):\n        raise ValueError('no')", "ValueError: no"),
}
"""Modules that bridges name as their homes, and the reason why ``Cluster`` cannot have their methods."""


@pytest.mark.slow
def test_bridges_whose_homes_cannot_be_loaded_are_warnings_and_their_methods_say_why(
    offered: Path, tmp_path: Path
) -> None:
    points = ["counts = stratalog_counts:BRIDGE"]
    for name, (code, _) in BROKEN_HOMES.items():
        (offered / f"home_{name}.py").write_text(code)
        offer = f"Bridge({name!r}, 'pip install it', 'home_{name}:Home', ({f'call_{name}'!r},))"
        (offered / f"offers_{name}.py").write_text(
            f"from stratalog.engine.config.bridges import Bridge\nBRIDGE = {offer}"
        )
        points.append(f"{name} = offers_{name}:BRIDGE")
    text = "\n".join(["[stratalog.bridges]", *points, ""])
    (offered / "counts-1.0.dist-info" / "entry_points.txt").write_text(text)
    make_cluster_file("docs/without-spark.md", tmp_path)
    program = f"""
from stratalog import Cluster, StratalogError
cluster = Cluster.format("cluster.toml")
cluster.topics.create("t", partitions=1)
cluster.produce("t", [{{"key": "a", "value": b"v"}}])
print([row["records"] for row in cluster.count_keys("t", 0).rows], callable(cluster.mirror))
for name in {list(BROKEN_HOMES)}:
    try:
        getattr(cluster, "call_" + name)("t")
    except StratalogError as error:
        print(error.code, error)
"""
    done = run(tmp_path, "-c", program, path=offered)
    assert done.returncode == 0, done.stderr
    first, *found = done.stdout.splitlines()
    assert first == "[1] True"
    for (name, (_, why)), line in zip(BROKEN_HOMES.items(), found, strict=True):
        what = f"the bridge '{name}' cannot be loaded: {why}"
        assert line.startswith(f"ENVIRONMENT_UNUSABLE {what}")
        assert what in done.stderr
