"""The table of rights in SECURITY.md: each operation makes exactly the requests of its row; without a right to
create or to delete, the error names it and the path.

delta-rs writes and reads the log of a remote table without our stores, so the tests only see the files that it
creates and deletes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog import Cluster
from stratalog.engine.driver.report import Report
from stratalog.partitions.errors import Right, StorageAuthorizationError, StratalogError
from tests.unit.rights import PLACES, RIGHTS, Needs, as_markdown
from tests.unit.rights_scene import ACTS, PREPARED, Act, Guarded, prepared

pytestmark = pytest.mark.slow

REFUSED = StorageAuthorizationError.code


def texts_of(act: Act, live: Guarded, driver: Cluster) -> tuple[bool, str]:
    """Whether the operation succeeded, and all texts about its failures."""
    try:
        answer = act(live, driver)
    except StratalogError as error:
        return False, f"{error.code}: {error}"
    if not isinstance(answer, Report):
        return True, ""
    return answer.ok, "\n".join([*map(str, answer.failures), *answer.notes])


by_name = pytest.mark.parametrize("row", RIGHTS, ids=lambda row: row.operation)


@pytest.mark.sample(17)
@by_name
def test_an_operation_asks_for_the_rights_of_its_row_and_for_no_others(row: Needs, tmp_path: Path) -> None:
    live = prepared(tmp_path, row)
    driver = live.driver()
    if not row.places.get("delta"):  # the operation works without that right
        for log in [*live.remote.rglob("_delta_log")]:
            log.rename(log.with_name("hidden"))
    with live.guarded(lambda place, right: right in row.right_of(place)) as (asked, refused):
        for act in ACTS[row.operation]:
            went_well, found = texts_of(act, live, driver)
            assert went_well, found
    assert refused == []
    expected = {(place, right) for place in PLACES for right in row.right_of(place)}
    changes = {(place, right) for place in PLACES for right in ("create", "delete")}
    assert asked <= expected
    if ("delta", "delete") in asked:  # the created files are deleted again
        changes -= {("delta", "create")}
    assert asked & changes == expected & changes, "and no row says too much"


WRITES = [
    pytest.param(row, place, right, id=f"{row.operation}: {right} in {place}")
    for row in RIGHTS
    for place in PLACES
    for right in sorted(row.right_of(place) & {"create", "delete"})
    if (place, right) != ("delta", "create")
]


@pytest.mark.sample(5)
@pytest.mark.slow
@pytest.mark.parametrize(("row", "place", "right"), WRITES)
def test_a_right_that_is_missing_is_named_with_the_path(
    row: Needs, place: str, right: Right, tmp_path: Path
) -> None:
    live = prepared(tmp_path, row)
    driver = live.driver()
    act = ACTS[row.operation][0]
    began_s = live.clock.monotonic_s()
    with live.guarded(lambda at, asked: (at, asked) != (place, right)) as (_, refused):
        went_well, found = texts_of(act, live, driver)
    assert refused, "it was asked for"
    if row.if_refused.startswith(place):
        assert went_well, found
    else:
        assert not went_well
        assert REFUSED in found
        assert any(path in found for path in refused), found
        assert live.clock.monotonic_s() - began_s < 5, "it has waited for nobody"


def test_a_producer_that_may_delete_nothing_lacks_nothing(tmp_path: Path) -> None:
    """Appends, commits, transactions, replicate, merge, tier and heal, one after the other."""
    live = Guarded(tmp_path)
    for operation in (
        "append, acks=all",
        "groups.commit",
        "transactions.begin",
        "replicate",
        "merge",
        "tier",
        "heal",
    ):
        PREPARED.get(operation, lambda _: None)(live)
        with live.guarded(lambda place, right: right != "delete") as (_, refused):
            for act in ACTS[operation]:
                went_well, found = texts_of(act, live, live.driver())
                assert went_well, (operation, found)
        assert refused == [], operation
    live.cluster.verify(deep=True).raise_for_failures()


def test_a_caller_who_may_only_read_changes_nothing_by_dry_runs(tmp_path: Path) -> None:
    live = Guarded(tmp_path)
    driver = live.driver()
    dry: tuple[Callable[[], object], ...] = (
        lambda: driver.replicate(dry_run=True),
        lambda: driver.merge(dry_run=True),
        lambda: driver.tier(dry_run=True),
        lambda: driver.retain(dry_run=True),
        lambda: driver.vacuum(dry_run=True),
        lambda: driver.heal(dry_run=True),
        lambda: driver.quorum.snapshot(dry_run=True),
        lambda: driver.topics.create("n", dry_run=True),
        lambda: driver.topics.delete("t", dry_run=True),
        lambda: driver.topics.delete_records("u", {0: 2}, dry_run=True),
        lambda: driver.elect("u", dry_run=True),
        lambda: driver.brokers.fence(4, dry_run=True),
        lambda: driver.groups.reset_offsets("g", to=0, dry_run=True),
    )
    for run in dry:
        with live.guarded(lambda place, right: right in ("list", "read")) as (_, refused):
            went_well, found = texts_of(lambda _, __, run=run: run(), live, driver)  # type: ignore[misc]
        assert went_well, found
        assert refused == []


def test_the_table_of_the_docs_is_the_one_that_is_tested() -> None:
    document = Path(__file__).parents[2] / "SECURITY.md"
    assert as_markdown() in document.read_text()


def test_a_fetch_without_the_right_to_read_is_refused_at_once(tmp_path: Path) -> None:
    live = Guarded(tmp_path)
    driver, began_s = live.driver(), live.clock.monotonic_s()
    with live.guarded(lambda place, right: place == "voters" or right == "list"):
        for act in (lambda: driver.fetch("u", 0, 0), lambda: next(iter(driver.tail("u", start=0)))):
            with pytest.raises(StorageAuthorizationError, match="cannot read"):
                act()
    assert live.clock.monotonic_s() == began_s
