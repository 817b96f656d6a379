"""Notebooks in kernels: the README's example with a classic session and with Spark Connect; those of the
documentation, all in one kernel, twice from top to bottom.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.notebooks import NOTEBOOKS, run
from tests.pages import ROOT, blocks, make_cluster_file
from tests.spark_session import connect_server

pytestmark = [
    pytest.mark.spark,
    pytest.mark.nightly,
    pytest.mark.classic("it starts both kinds of session, each in its own process"),
]

SHOWN = "print(type(spark).__module__)"


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
    printed = "".join(out.text for cell in notebook.cells for out in cell.outputs if out.get("name") == "stdout")
    assert ("pyspark.sql.connect" in printed) == (kind == "connect")
    assert [word in printed for word in ("duplicate", "| t1|     3.5|")] == [True, True]


def test_the_notebooks_of_the_documentation_run_twice(tmp_path: Path) -> None:
    """They contain assertions, and show tables, a short traceback, and no remaining progress bars."""
    shown: dict[str, list[str]] = {}
    for path, book in run(tmp_path, times=2):
        outputs = [out for cell in book.cells for out in cell.get("outputs", ())]
        shown.setdefault(path.stem, []).append(
            "".join(
                str(out.get("data", {}).get("text/html", "")) + str(out.get("traceback", "")) for out in outputs
            )
        )
        bars = [out for out in outputs if out.output_type == "display_data"]
        assert not any(out.data["text/html"] for out in bars)
    assert sorted(shown) == [path.stem for path in NOTEBOOKS]
    assert "acknowledged" in shown["quick-start"][0]
    assert "acknowledged" not in shown["quick-start"][1]
    assert "a segment is sealed at 1 GiB or 7 days" in shown["quick-start"][0]
    assert "did you mean" in shown["quick-start"][0]
    assert "site-packages" not in shown["quick-start"][0]
    for first, second in shown.values():
        assert first.count("duplicate") < second.count("duplicate")
    assert all("its root was replaced" in one or "does not answer" in one for one in shown["lost-region"])
