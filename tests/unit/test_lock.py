"""``requirements.lock``: what set-up installs, and nothing else."""

from __future__ import annotations

import re

from tests.bare_python import ROOT

PIN = re.compile(r"[A-Za-z0-9._-]+==[^\s;\\]+( \\\n    --hash=sha256:[0-9a-f]{64})+\n")


def test_every_package_is_pinned_by_version_and_by_hashes() -> None:
    header, _, pins = (ROOT / "requirements.lock").read_text().partition("\n")
    assert header.startswith("#")
    assert not PIN.sub("", pins)
    assert len(PIN.findall(pins)) > 100


def test_no_index_is_named() -> None:
    for name in ("requirements.lock", "Makefile"):
        assert not re.search(r"(index-url|find-links|trusted-host)[= ]+http", (ROOT / name).read_text())


def test_set_up_takes_no_file_without_its_hash() -> None:
    installs = [
        line
        for line in (ROOT / "Makefile").read_text().splitlines()
        if "requirements.lock" in line and " install " in line
    ]
    assert installs
    assert all("--require-hashes" in line for line in installs)
