"""Code that uses Spark works with Spark Connect, too: nothing reaches into the JVM of the driver."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("stratalog", "engine", "jobs", "tiering", "snapshots", "partitions")

OF_THE_JVM = {
    *("sparkContext", "SparkContext", "SparkConf", "_sc", "_jsc", "_jvm", "_jdf", "_jsparkSession", "_gateway"),
    *("rdd", "parallelize", "accumulator", "setLocalProperty", "newSession", "py4j"),
    *("java_gateway", "JavaGateway", "launch_gateway", "is_instance_of", "_origin"),
}
"""Names of PySpark that sessions of Spark Connect do not have, and the library below a classic session."""

ALLOWED = {
    "jobs/session.py": {
        *("SparkContext", "SparkConf", "sparkContext", "_jsc", "_jvm", "_gateway"),
        *("py4j", "java_gateway", "JavaGateway", "launch_gateway"),
    },  # it starts the JVM of a classic session; one of Spark Connect has a server
    # the description of jobs; the server of Spark Connect describes its own jobs
    "engine/spark/described.py": {"_sc", "setLocalProperty"},
    "engine/spark/aborted.py": {"py4j"},  # the name of a module: how an error of a classic session is recognized
    "engine/spark/frame_tasks.py": {"_jdf"},  # statistics of a plan; without them an append takes the shuffle
    "engine/spark/stream_query.py": {"sparkContext"},  # the id of a query; Spark Connect's is found otherwise
}
"""Exceptions by module; each entry is used."""


def of_the_jvm(tree: ast.AST) -> Iterator[str]:
    """The JVM's names in code: as attributes, as names, in imports, and as texts (``getattr``)."""
    for node in ast.walk(tree):
        names: list[str] = []
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name):
                names = [name]
            case ast.Constant(value=str() as text):
                names = [text]
            case ast.Import(names=aliases):
                names = [part for alias in aliases for part in alias.name.split(".")]
            case ast.ImportFrom(module=module, names=aliases):
                names = [*(module or "").split("."), *(alias.name for alias in aliases)]
        yield from OF_THE_JVM.intersection(names)


@pytest.mark.slow
def test_no_module_reaches_into_the_jvm_but_those_that_say_why() -> None:
    found = {
        str(path.relative_to(ROOT)): set(of_the_jvm(ast.parse(path.read_text(encoding="utf-8"))))
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not (folder == "stratalog" and path.parent != ROOT / folder)  # links to the others
    }
    assert {module: names for module, names in found.items() if names} == ALLOWED


def unmarked(tree: ast.Module) -> set[str]:
    """The tests of a module that reach into the JVM, directly or through functions in the module, without a mark
    that skips them on Spark Connect.
    """
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    reaching = {name for name, node in functions.items() if set(of_the_jvm(node))}
    while further := {
        name
        for name, node in functions.items()
        if name not in reaching and any(isinstance(n, ast.Name) and n.id in reaching for n in ast.walk(node))
    }:
        reaching |= further
    marks = {name: " ".join(map(ast.unparse, node.decorator_list)) for name, node in functions.items()}
    return {name for name in reaching if name.startswith("test_") and "mark.classic(" not in marks[name]}


@pytest.mark.slow
def test_tests_that_use_the_jvm_are_marked_as_impossible_on_spark_connect() -> None:
    found = {
        path.name: unmarked(ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted((ROOT / "tests/spark").glob("test_*.py"))
    }
    assert {name: tests for name, tests in found.items() if tests} == {}
    asks = "def jobs(spark):\n    return spark.sparkContext\n"
    test = "def test_asks(spark):\n    jobs(spark)\n"
    assert unmarked(ast.parse(asks + test)) == {"test_asks"}
    assert unmarked(ast.parse(f"{asks}@pytest.mark.classic('it asks')\n{test}")) == set()


@pytest.mark.parametrize(
    "code",
    [
        "spark.sparkContext.parallelize([1])",
        "from pyspark import SparkContext",
        "from py4j.protocol import Py4JError",
        "import py4j.protocol",
        "frame.rdd.map(f)",
        'getattr(frame, "_jdf", None)',
    ],
)
def test_each_way_into_the_jvm_is_detected(code: str) -> None:
    assert set(of_the_jvm(ast.parse(code)))
