"""The command line of restore: a real run on an S3 server, and errors of a call."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog import Cluster
from stratalog.jobs.restore import main as restore
from tests.s3_server import S3Endpoint
from tests.unit.jobs_harness import report
from tests.unit.test_bootstrap_scenarios import World

HISTORY = ["msg 0 LE-0", "msg 1 LE-0", "tier", "msg 2 LE-1", "tier", "msg 3 LE-1"]


def heir_of(world: World, folder: Path) -> Path:
    """A cluster file with other brokers and the same remote."""
    folder.mkdir()
    text = (world.folder / "cluster.toml").read_text().replace('id = "c"', 'id = "heir"')
    (folder / "cluster.toml").write_text(text.replace('"b', '"../heir/b').replace('"remote"', '"../remote"'))
    for broker in range(1, 5):
        (folder / f"b{broker}").mkdir()
    return folder / "cluster.toml"


@pytest.mark.s3
def test_a_drill_and_a_restore_work_with_the_remote_tier_on_s3(
    s3_endpoint: S3Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path, f"s3://{s3_endpoint.bucket}/{tmp_path.name}", s3_endpoint)
    world.run(HISTORY)
    living = str(tmp_path / "cluster.toml")
    assert restore(["--cluster", living, "--drill", "--deep", "--json"]) == 0
    totals = report(capsys)["totals"]
    assert (totals["records"], totals["lost_records"]) == (3, 1)
    file = heir_of(world, tmp_path / "heir")
    assert restore(["--cluster", str(file), "--from", "c", "--dry-run"]) == 0
    assert restore(["--cluster", str(file), "--from", "c", "--json", "--yes"]) == 0
    cluster = Cluster.open(file)
    fetched = cluster.fetch("t", 0, 0)
    assert [value.decode() for value in fetched.records.column("value").to_pylist()] == HISTORY[:2] + HISTORY[3:4]
    assert fetched.remote
    cluster.verify(deep=True).raise_for_failures()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "one of the arguments --from --drill is required"),
        (("--from", "c", "--drill"), "not allowed with"),
        (("--from", "c", "--yes"), "needs an id other than"),
        (("--from", "c"), "this cannot be undone, and there is no terminal to confirm it"),
        (("--from", "d", "--yes"), "has no restore point of cluster 'd'"),
        (("--from", "d", "--deep"), "--deep needs --drill"),
        (("--drill", "--dry-run"), "--drill and --dry-run cannot be used together"),
        (("--drill",), "has no restore point of cluster 'c'"),
    ],
)
def test_wrong_calls_are_refused(
    tmp_path: Path, argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    World(tmp_path, "remote", None)
    assert restore(["--cluster", str(tmp_path / "cluster.toml"), *argv]) == 2
    assert message in capsys.readouterr().err
