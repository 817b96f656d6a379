"""The fuzzer finds the planted faults, and its findings can be repeated."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.depth import at_depth
from tests.fuzz import thrift
from tests.fuzz.changes import draw_change
from tests.fuzz.mutations import Specimens
from tests.fuzz.paths import files_below, place_of
from tests.fuzz.planted import FAULTS
from tests.fuzz.sealing import fields_of, parts_of, seal_pages, seal_segment
from tests.fuzz.tree import Tree

SEED = 20
MUTATIONS, PARTS = at_depth(test=300, nightly=10_000), at_depth(test=1, nightly=4)
IN_MEMORY = [str(index) for index in range(1, 140)]
END_TO_END = [str(index) for index in range(0, 2400, 40)]
SEALED = ("segment", "remote segment", "state segment", "snapshot", "metadata batch", "metadata snapshot")
OF_A_FUNCTION = ("foreign", "death", "hang", "memory", "unsigned")
VERDICTS = {
    "beside": "outside",
    "victim": "outside",
    "in place": "outside",
    "in a report": "foreign",
    "unsigned": "wrong metadata",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree(tmp_path_factory.mktemp("tree"))


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the fuzzer in a separate process, because it forks, and a forking process may have no threads."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_mutation_is_a_finding(part: int) -> None:
    """The result is right, or an error of stratalog; unaffected parts of the cluster continue to work."""
    each = MUTATIONS // PARTS
    given = {"--seed": SEED, "--first": part * each, "--mutations": each, "--processes": 1}
    ended = run("tests.fuzz", *(str(text) for option in given.items() for text in option))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    made = re.search(rf"seed {SEED}: {each} mutations", ended.stdout)
    assert made is not None, ended.stdout
    assert re.search(r"right [0-9]{2}.*own error [0-9]{2}|own error [0-9]{2}.*right [0-9]{2}", ended.stdout)


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_put_into_the_engine_is_found(fault: str) -> None:
    ended = run("tests.fuzz.planted", fault, *(IN_MEMORY if fault in OF_A_FUNCTION else END_TO_END))
    assert VERDICTS.get(fault, fault) in ended.stdout.split("\n"), ended.stderr


@pytest.mark.nightly
def test_the_same_seed_and_index_give_the_same_mutation(tree: Tree) -> None:
    specimens = Specimens(tree.files)
    made = []
    for index in (*range(12), *range(12)):
        tree.fresh()
        change = draw_change(random.Random(f"1:{index}"), tree.now, specimens)
        made.append((change.kind, change.what, sorted(change.paths)))
    assert made[:12] == made[12:]


@pytest.mark.nightly
def test_a_fresh_copy_has_nothing_of_what_was_done_to_the_one_before(tree: Tree) -> None:
    specimens = Specimens(tree.files)
    for index in range(40):
        tree.fresh()
        draw_change(random.Random(index), tree.now, specimens)
        assert [one for one in tree.outside_changes(()) if "plan.json" not in one] == []
    tree.fresh()
    assert {path: Path(entry.path).read_bytes() for path, entry in files_below(tree.now)} == tree.files


@pytest.mark.slow
def test_a_footer_that_nobody_has_changed_is_written_as_it_was(tree: Tree) -> None:
    """A mutation of one field therefore changes only that field."""
    sealed = 0
    for path, data in tree.files.items():
        if place_of(path).kind in SEALED:
            body, footer = parts_of(data)
            assert thrift.encode_struct(fields_of(footer)) == footer, path
            assert seal_segment(body, footer) == data, path
            assert seal_pages(body, footer) == data, path
            sealed += 1
    assert sealed > 100
