"""The notebooks of the documentation: run in one kernel, one after another, and written again with their output.

    python -m tests.notebooks

rewrites ``docs/*.ipynb``; ``make docs`` shows them as pages.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.pages import ROOT

NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))
_SHOWN_FOLDER = "/data"
"""The folder of the notebooks, as the pages have it."""


def run(folder: Path, times: int = 1) -> Iterator[tuple[Path, Any]]:
    """Run each notebook ``times`` times from top to bottom, in a separate folder, all in one kernel. Yields the
    path of each with its cells and their output, turn by turn.

    Raises: CellExecutionError for a cell that raises without the tag for it; AssertionError for a tagged cell that
    does not raise.
    """
    cells, turns = [], []
    for path in NOTEBOOKS:
        (folder / path.stem).mkdir()
        for _ in range(times):
            cells.append(nbformat.v4.new_code_cell(f"import os; os.chdir({str(folder / path.stem)!r})"))
            book = nbformat.read(path, as_version=4)
            code = [cell for cell in book.cells if cell.cell_type == "code"]
            run_as = [nbformat.v4.new_code_cell(cell.source, metadata=cell.metadata) for cell in code]
            cells += run_as
            turns.append((path, book, list(zip(code, run_as, strict=True))))
    client = NotebookClient(
        nbformat.v4.new_notebook(cells=cells),
        timeout=300,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_MASTER": "local[2]"})
    for path, book, pairs in turns:
        for cell, ran in pairs:
            cell.outputs = ran.outputs
            raised = any(out.output_type == "error" for out in cell.outputs)
            assert raised == ("raises-exception" in cell.metadata.get("tags", ())), (path.name, cell.source)
        yield path, book


def for_people(outputs: Iterable[Any], folder: Path, number: int) -> list[Any]:
    """The outputs of cell ``number`` without standard error (Spark's log), finished progress bars, and names of
    this machine.
    """
    kept = []
    for out in outputs:
        texts = out.data if "data" in out else out
        if out.get("name") == "stderr" or ("data" in out and not any(texts.values())):
            continue
        for name, text in texts.items():
            if isinstance(text, str):
                texts[name] = text.replace(str(folder), _SHOWN_FOLDER)
        if "traceback" in out:
            out.traceback = [re.sub(r"In\[\d+\]", f"In[{number}]", line) for line in out.traceback]
        if "execution_count" in out:
            out.execution_count = number
        kept.append(out)
    return kept


def write(folder: Path) -> None:
    """Write the notebooks with the output of a run in ``folder``."""
    for path, book in run(folder):
        number = 0
        for cell in book.cells:
            if cell.cell_type == "code":
                number += 1
                cell.execution_count = number
                cell.outputs = for_people(cell.outputs, folder / path.stem, number)
        nbformat.write(book, path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        write(Path(made))
