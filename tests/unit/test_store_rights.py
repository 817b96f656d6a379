"""Rights that a file system denies: the error names the missing right and the path."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.partitions.errors import StorageAuthorizationError
from stratalog.partitions.paths import probe_name
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.rules import check_exclusive_create
from tests.unit.faulty_store import FaultyStore
from tests.unit.without_privileges import run_without_privileges

PROGRAM = """
import json, sys
from stratalog.partitions.errors import StorageAuthorizationError
from stratalog.partitions.store.local import LocalStore

store = LocalStore(sys.argv[1])
errors = {}
for name, call in {
    "list": lambda: store.list("closed"),
    "names": lambda: store.names("closed"),
    "read": lambda: store.read("open/secret"),
    "stat": lambda: store.stat("closed/file"),
    "open": lambda: store.open(store.list("open")[-1]),
    "create": lambda: store.create("open/new", b"x"),
    "stage": lambda: store.stage_writer("open/new").commit(),
    "delete": lambda: store.delete(["open/file"]),
    "sweep": lambda: store.sweep_staging(-10**12),
    "check": lambda: store.check(),
}.items():
    try:
        call()
    except StorageAuthorizationError as error:
        errors[name] = [error.code, error.right, error.path, str(error)]
print(json.dumps(errors))
"""


@pytest.mark.slow
def test_each_call_names_the_right_that_is_missing_and_the_path(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    for name in ("open/file", "open/secret", "closed/file"):
        store.create(name, b"x")
    (tmp_path / ".staging" / "left").write_bytes(b"x")
    modes = {"open/secret": 0o000, "open": 0o555, "closed": 0o000, ".staging": 0o555, ".": 0o555}
    for name, mode in modes.items():
        (tmp_path / name).chmod(mode)
    try:
        answer = json.loads(run_without_privileges(PROGRAM, [str(tmp_path)]))
    finally:
        for name in reversed(modes):
            (tmp_path / name).chmod(0o755)
    expected = {
        "list": ("list", "closed"),
        "names": ("list", "closed"),
        "read": ("read", "open/secret"),
        "stat": ("read", "closed/file"),
        "open": ("read", "open/secret"),
        "create": ("create", "open/new"),
        "stage": ("create", "open/new"),
        "delete": ("delete", "open/file"),
        "sweep": ("delete", ".staging"),
        "check": ("create", ""),
    }
    assert {call: right for call, (_, right, _, _) in answer.items()} == {c: r for c, (r, _) in expected.items()}
    for call, (code, right, path, message) in answer.items():
        assert code == "CLUSTER_AUTHORIZATION_FAILED"
        assert str(path).startswith(str(tmp_path / expected[call][1])), call
        assert f"give this user the right to {right} there" in message


def test_a_probe_that_may_not_be_deleted_stays_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """The root creates exclusively, and the probe had to answer nothing else."""
    store = FaultyStore(MemoryStore("memory://b1"))

    def refuse(what: str, name: str, call: Callable[[], object]) -> object:
        if what == "delete":
            raise StorageAuthorizationError(f"cannot delete {name}: denied", "delete", store.uri_of(name))
        return call()

    store.hook = refuse
    check_exclusive_create(store, probe_name("1"))
    assert store.names("") == {"1.probe"}
    assert "probes remain in memory://b1, which does no harm: cannot delete 1.probe" in caplog.text
    check_exclusive_create(store, probe_name("2"))
