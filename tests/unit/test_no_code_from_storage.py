"""Stored content is data: nothing of it is imported, unpickled, evaluated or run. The linter bans such functions
by name (``S...`` and ``banned-api`` of pyproject.toml); this table has every suspicious place, with the reason why
it is safe."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_layers import MODULES, imported, tree, under

MODULES_OF_CODE = {
    *("pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml", "jinja2", "string.Template"),
    *("importlib", "imp", "pkgutil", "runpy", "zipimport", "code", "codeop", "ctypes", "subprocess"),
}
"""Modules that can make code from data, or from a name."""

FUNCTIONS_OF_CODE = {
    *("eval", "exec", "compile", "__import__", "import_module", "loadClass", "forName", "java_import"),
    *(
        "fromJson",
        "fromDDL",
        "_parse_datatype_json_string",
        "_parse_datatype_json_value",
        "_parse_datatype_string",
    ),
}
"""Functions that can make code from data: Python's own, py4j's, and those of PySpark that import a type's text."""

KNOWN = {
    ("stratalog/__init__.py", "importlib.import_module"): "one of the modules that the package lists",
    ("stratalog/__init__.py", "import_module"): "a public name, by its module",
    ("stratalog/__init__.py", "importlib.util.find_spec"): "whether this package is whole",
    ("engine/spark/providers.py", "pickle"): "a function that the driver's caller has given, through Spark",
    ("partitions/store/credentials.py", "importlib"): "a provider that the caller named",
    ("partitions/store/credentials.py", "importlib.import_module"): "never of a file in a bucket",
    ("engine/spark/runner.py", "pickle"): "between a driver and its tasks, through Spark",
    ("jobs/streaming.py", "pickle"): "between a job and its batches, through the settings of its own session",
    ("engine/replication/replica_selector.py", "importlib.metadata"): "what installed packages declare",
    ("engine/config/bridges.py", "importlib"): "a bridge by its name",
    ("engine/config/bridges.py", "importlib.import_module"): "one of this project, or of an installed package",
    ("engine/config/bridges.py", "importlib.util"): "whether a bridge is installed",
    ("engine/config/bridges.py", "importlib.metadata.entry_points"): "what installed packages declare",
    ("jobs/main.py", "importlib"): "a job by its name",
    ("engine/spark/task_frame.py", "pickle"): "tasks that its own driver has made",
    ("jobs/main.py", "importlib.import_module"): "one of JOBS",
    ("bridges/page/document.py", "importlib.resources.files"): "files of this package",
    ("jobs/declared.py", "importlib.resources.files"): "files of this package",
    ("bridges/page/document.py", "string.Template"): "of a file of this package; what is filled in is no template",
    ("jobs/jars.py", "importlib.resources"): "files of this package",
    ("jobs/package.py", "importlib.resources"): "files of this package",
    ("jobs/package.py", "importlib.resources.abc.Traversable"): "their type",
    ("jobs/jars.py", "importlib.util"): "whether pyspark is installed",
    ("jobs/java.py", "subprocess"): "java -version",
    ("jobs/jars.py", "subprocess"): "the fetching of jars, once",
    ("partitions/store/local_birth.py", "ctypes"): "statx of the C library",
    ("partitions/store/local_watch.py", "ctypes"): "inotify of the C library",
    ("bridges/kafka_tier/layout.py", "importlib.metadata.entry_points"): "what installed packages declare",
    ("jobs/session.py", "loadClass"): "whether the JVM has the classes of Spark's own conf",
}


def ways(module: Path) -> Iterator[str]:
    """The places of a module that could make code from data."""
    yield from (name for name in imported(module) if under(name, MODULES_OF_CODE))
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Call) and last_name(node.func) in FUNCTIONS_OF_CODE:
            name = ast.unparse(node.func)
            if not name.startswith("re."):
                yield name if len(name) < 40 else last_name(node.func)


def last_name(function: ast.expr) -> str:
    """The last name of a call: ``c`` of ``a.b.c``; empty if the function is the result of a call."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


@pytest.mark.slow
def test_every_place_that_could_make_code_of_data_is_known() -> None:
    assert {(str(module), way) for module in MODULES for way in ways(module)} == set(KNOWN)
