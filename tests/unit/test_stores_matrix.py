"""The table of servers, with a folder instead of a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stratalog.partitions.errors import EnvironmentUnusableError
from tests import stores_matrix
from tests.stores_matrix import Place, main, verdict


@pytest.mark.slow
def test_a_verdict_names_what_is_broken(tmp_path: Path) -> None:
    assert verdict(Place([str(tmp_path)], {}), ()) == "all rules kept"
    assert verdict(Place([str(tmp_path / "missing")], {}), ()).startswith("broken: it can be used")
    assert verdict(Place([str(tmp_path)], {}), ["--colour"]).startswith("not checked: ")


def test_a_server_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def missing() -> Iterator[Place]:
        raise EnvironmentUnusableError("no program")
        yield

    monkeypatch.setitem(stores_matrix.SERVERS_AND_SETTINGS, "MinIO", (missing, ((),)))
    assert main(["MinIO"]) == 0
    assert capsys.readouterr().out == "| MinIO | none | not checked: no program |\n"
    assert main(["Minio"]) == 2
    assert "no server 'Minio'" in capsys.readouterr().out
