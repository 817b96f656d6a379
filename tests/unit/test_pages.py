"""The README and the documentation: code that runs without Spark, commands, links, names."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import shlex
from pathlib import Path
from typing import Any, get_args

import pytest

from stratalog import Cluster
from stratalog.engine.metadata.records import MetadataRecord
from stratalog.jobs.main import JOBS, job_of, main
from stratalog.partitions import paths
from stratalog.partitions.records import COLUMNS
from tests.pages import PAGES, ROOT, blocks, make_cluster_file

RUN_WITHOUT_SPARK = "docs/without-spark.md"
RUN_WITH_ICEBERG = "docs/iceberg.md"  # tests/unit/test_upkeep_iceberg.py
RUN_AS_A_BRIDGE = "docs/bridges.md"  # tests/bridges/test_bridges.py
RUN_WITH_SPARK = (
    "README.md",
    "docs/delta.md",
    "docs/mirror.md",  # tests/kafka/test_live_page.py
    "docs/tutorial.md",
    "docs/pipelines.md",
)  # tests/spark

_LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
_PACKAGES = "partitions|tiering|snapshots|engine|jobs|tests"
_TEST = re.compile(r"`(test_\w+)`")
_MODULE = re.compile(rf"`(?:stratalog\.)?((?:{_PACKAGES})(?:[./]\w+)*(?:\.py|/)?)`")
LONGEST_README = 175
GIVEN = {"docs/delta.md": ("spark", "cluster")}
"""Names from the README that a page uses."""


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_the_code_without_spark_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cluster_file(RUN_WITHOUT_SPARK, tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(RUN_WITHOUT_SPARK, "python"):
        exec(block, names)
    assert {row["outcome"] for row in names["report"].rows} == {"acknowledged"}
    assert {row["outcome"] for row in names["again"].rows} == {"duplicate"}
    assert names["values"] == [b"20.5", b"19.0"]
    assert names["arrived"].num_rows == 2
    assert names["found"].ok


def test_the_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cluster_file("README.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STRATALOG_CLUSTER", "cluster.toml")
    [block] = blocks("README.md", "sh")
    for line in block.splitlines():
        program, *argv = shlex.split(line, comments=True)
        assert (program, main(argv)) == ("stratalog", 0), line
    assert Cluster.open("cluster.toml").verify().ok


def test_every_python_block_is_run_by_some_test() -> None:
    assert {name(page) for page in PAGES if blocks(name(page), "python")} == {
        RUN_WITHOUT_SPARK,
        RUN_WITH_ICEBERG,
        RUN_AS_A_BRIDGE,
        *RUN_WITH_SPARK,
    }


@pytest.mark.parametrize("page", [name(page) for page in PAGES])
def test_a_page_defines_each_name_before_it_uses_it(page: str) -> None:
    """A function or class body may use all names of the page."""
    known, later = {*dir(builtins), *GIVEN.get(page, ())}, set[str]()
    for block in blocks(page, "python"):
        for statement in ast.parse(block).body:
            names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
            bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
            bound |= {node.arg for node in ast.walk(statement) if isinstance(node, ast.arg)}
            imported = [node for node in ast.walk(statement) if isinstance(node, ast.alias)]
            bound |= {(node.asname or node.name).partition(".")[0] for node in imported}
            used = {node.id for node in names if isinstance(node.ctx, ast.Load)} - bound
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                bound, later, used = bound | {statement.name}, later | used, set()
            assert used <= known, ast.unparse(statement)
            known |= bound
    assert later <= known


def commands() -> list[str]:
    lines = [line for page in PAGES for block in blocks(name(page), "sh") for line in block.splitlines()]
    lines += re.findall(r"^    (stratalog .*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    return [line.partition("#")[0] for line in lines]


@pytest.mark.parametrize("command", commands())
def test_every_command_is_one_that_the_job_takes(command: str) -> None:
    _, job, *rest = shlex.split(command)
    assert job in JOBS
    job_of(job).parser().parse_args(rest)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Links to a file, and to a heading of it, must have a target. (``llms.txt`` is made with the site.)"""
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        if path.startswith("https://") or path == "llms.txt":
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), link
        assert not anchor or anchor in headings(target), link


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in found}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_module_that_is_named_is_there(page: Path) -> None:
    """A class or function of the module must exist, too, if a page names it."""
    for named in _MODULE.findall(page.read_text(encoding="utf-8")):
        path = ROOT / (named if "/" in named else named.replace(".", "/"))
        if not path.exists() and not path.with_suffix(".py").exists():
            module, _, attribute = named.rpartition(".")
            assert path.parent.with_suffix(".py").exists(), named
            assert hasattr(importlib.import_module(f"stratalog.{module}"), attribute), named
    for named in _TEST.findall(page.read_text(encoding="utf-8")):
        assert [*(ROOT / "tests").rglob(f"{named}.py")], named


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= LONGEST_README


def test_the_page_of_formats_names_every_kind_of_file_every_column_and_every_record() -> None:
    text = (ROOT / "docs/format.md").read_text(encoding="utf-8")
    files = [
        *(paths.DataName(0, None, 1), paths.EpochName(1), paths.WatermarkName(0, 1), paths.LocalStartName(0)),
        *(paths.ClaimName(1), paths.CheckpointName(1, 1), paths.ChunkName(1, 1, 0), paths.BROKER_FILE),
        *(
            *(paths.schedule_path("", of, 0) for of in paths.SCHEDULES),
            paths.description_path("", 0, ""),
            paths.probe_name(""),
        ),
    ]
    words = [
        *(f".{str(file).rpartition('.')[2]}`" for file in files),
        *(record.__name__ for record in get_args(MetadataRecord)),
        *(f"`{column}`" for column in COLUMNS),
    ]
    assert [word for word in words if word not in text] == []


def test_every_test_of_the_page_of_platforms_is_there() -> None:
    named = set(re.findall(r"\b(?:spark|unit)/test_\w+", (ROOT / "docs/platforms.md").read_text()))
    assert len(named) > 20
    assert [each for each in sorted(named) if not (ROOT / "tests" / f"{each}.py").is_file()] == []


def test_the_documentation_names_every_page_in_its_list() -> None:
    """MkDocs checks it as well (``make docs``); this test needs no MkDocs."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    notebooks = [path.with_suffix(".md") for path in (ROOT / "docs").glob("*.ipynb")]
    assert len(notebooks) == 3
    assert [page.name for page in (*PAGES[1:], *notebooks) if f": {page.name}\n" not in nav] == []
