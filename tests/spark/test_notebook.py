"""The README's example as a notebook, in a kernel of its own: with a classic session, and one of Spark Connect."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.pages import ROOT, blocks, make_cluster_file
from tests.spark_session import connect_server

pytestmark = [pytest.mark.spark, pytest.mark.classic("it starts both kinds of session, each in its own process")]

SHOWN = """
assert {row["outcome"] for row in report.rows} == {"acknowledged"}
assert {row["outcome"] for row in again.rows} == {"duplicate"}
print(type(spark).__module__, [tuple(row) for row in oslo.collect()])
"""


@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_the_readme_runs_as_a_notebook(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cluster_file("README.md", tmp_path)
    [example] = blocks("README.md", "python")
    cells = [nbformat.v4.new_code_cell(source) for source in (*example.split("\n\n"), SHOWN)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    with connect_server(tmp_path) if kind == "connect" else nullcontext() as address:
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.setenv("SPARK_MASTER", "local[2]")
        if address is not None:
            monkeypatch.setenv("SPARK_REMOTE", address)
        client = NotebookClient(
            notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
        )
        client.execute()
    [output] = [out for out in notebook.cells[-1].outputs if out.output_type == "stream" and out.name == "stdout"]
    module, found = output.text.split(maxsplit=1)
    assert module.startswith("pyspark.sql.connect") == (kind == "connect")
    assert found.strip() == "[('t1', 3.5)]"
