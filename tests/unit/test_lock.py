"""``requirements.lock`` and ``docs/requirements.txt``: the packages of the set-up and of the documentation."""

from __future__ import annotations

import re

import pytest

from tests.bare_python import ROOT

PIN = re.compile(r"[A-Za-z0-9._-]+==[^\s;\\]+( \\\n    --hash=sha256:[0-9a-f]{64})+\n")
LOCKS = {"requirements.lock": 100, "docs/requirements.txt": 20}
"""The minimum number of pinned packages, keyed by file."""


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_is_pinned_by_version_and_by_hashes(name: str) -> None:
    lines = (ROOT / name).read_text().splitlines(keepends=True)
    pins = "".join(line for line in lines if not line.startswith("#"))
    assert not PIN.sub("", pins)
    assert len(PIN.findall(pins)) > LOCKS[name]


def test_no_index_is_named() -> None:
    for name in (*LOCKS, "Makefile"):
        assert not re.search(r"(index-url|find-links|trusted-host)[= ]+http", (ROOT / name).read_text())


@pytest.mark.parametrize("name", LOCKS)
def test_no_file_is_installed_without_its_hash(name: str) -> None:
    joined = (ROOT / "Makefile").read_text().replace("\\\n", "")
    installs = [line for line in joined.splitlines() if f"-r {name}" in line and " install " in line]
    assert installs
    assert all("--require-hashes" in line for line in installs)
