"""All modules are below ``stratalog``: the public package, its lazy imports, and the folder names, which are
refused.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_layers import MAY_IMPORT, MODULES, ROOT, imported, under

FOLDERS = set(MAY_IMPORT) - {"stratalog"}
OTHERS = ("bench", "demo", "tests")
SUSPECT = re.compile(rf"^\s*(?:from|import)\s+(?:[^\n]*,\s*)?(?:{'|'.join(FOLDERS)})\b", re.MULTILINE)
"""A line that may contain such an import. Parsing all the files takes ten times as long as reading them."""
FILES = [*MODULES, *sorted(path.relative_to(ROOT) for other in OTHERS for path in (ROOT / other).rglob("*.py"))]


def test_every_package_of_the_repository_is_linked() -> None:
    links = {link.name: link.readlink() for link in (ROOT / "stratalog").iterdir() if link.is_symlink()}
    assert links == {name: Path("..", name) for name in FOLDERS}


@pytest.mark.parametrize("name", sorted(FOLDERS))
def test_a_package_is_not_imported_by_the_name_of_its_folder(name: str) -> None:
    """Each module of such a package would exist twice; a checkout has the folder where Python looks first."""
    with pytest.raises(ImportError, match=f'^import "stratalog.{name}", not "{name}"'):
        importlib.import_module(name)


@pytest.mark.slow
def test_no_module_imports_by_the_name_of_a_folder() -> None:
    """Function bodies, which run late, are checked, too."""
    suspects = [module for module in FILES if SUSPECT.search((ROOT / module).read_text(encoding="utf-8"))]
    assert [(str(module), name) for module in suspects for name in imported(module) if under(name, FOLDERS)] == []


def test_an_import_by_the_name_of_a_folder_is_suspect_wherever_it_is() -> None:
    for code in (
        "import engine",
        "  from jobs.main import main",
        "import os, engine.spark",
        "import os as o, conf",
    ):
        assert SUSPECT.search(f"x = 1\n{code}\n"), code
    assert not SUSPECT.search("from stratalog.engine import spark\nfrom stratalog import engines\n")


def test_the_door_loads_the_standard_library_alone() -> None:
    """``make`` runs ``stratalog.jobs.java`` to find a Java before anything is installed."""
    code = "import sys, stratalog.jobs.java; print(*{name.partition('.')[0] for name in sys.modules})"
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {*sys.stdlib_module_names, "__main__", "stratalog"}
