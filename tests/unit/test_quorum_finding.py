"""Voters of the metadata log are found, whatever the cluster file names (protocol section 5)."""

from __future__ import annotations

import pytest

from stratalog.engine.metadata.voter_commands import AddVoter, RemoveVoter
from stratalog.engine.quorum.bootstrap import find_log
from stratalog.partitions.errors import InvalidCallError
from tests.unit.quorum_harness import CLUSTER, Quorum, add, registered, remove


def found(quorum: Quorum, named: list[int], *, as_logged: bool = False) -> list[int]:
    return [voter.broker_id for voter in find_log(CLUSTER, named, quorum.stores, as_logged=as_logged).voters]


def test_the_present_voters_are_found() -> None:
    quorum = Quorum(3, others=1)
    add(quorum, 4)
    remove(quorum, 2)
    assert found(quorum, [1, 3, 4]) == [1, 3, 4]
    with pytest.raises(
        InvalidCallError, match=r"names brokers \[1, 2, 3\] as voters, but the metadata log names \[1, 3, 4\]"
    ):
        found(quorum, [1, 2, 3])
    assert found(quorum, [1, 2, 3], as_logged=True) == [1, 3, 4]


@pytest.mark.parametrize("stranger", [1, 2, 3])
def test_the_present_voters_are_found_where_a_stranger_has_written_to_a_named_one(stranger: int) -> None:
    """Two intact voters of the named ones are no majority of the current voters if one was removed."""
    quorum = Quorum(3, others=1)
    add(quorum, 4)
    remove(quorum, 2)
    folder = quorum.voters[stranger - 1].folder
    assert quorum.stores[stranger].create(f"{folder}/00000000000000000000.0000000099.parquet", b"garbage")
    assert found(quorum, [1, 2, 3], as_logged=True) == [1, 3, 4]


def test_voters_that_the_file_does_not_name_at_all_are_found() -> None:
    """All voters of the file have been removed since, and wiped."""
    quorum = Quorum(1, others=1)
    add(quorum, 2)
    remove(quorum, 1)
    quorum.wipe(1)
    assert found(quorum, [1], as_logged=True) == [2]
    with pytest.raises(InvalidCallError, match=r"names brokers \[1\] as voters, but the metadata log names \[2\]"):
        found(quorum, [1])


def test_a_voter_without_an_entry_in_the_file_is_named() -> None:
    quorum = Quorum(1, others=1)
    two = registered(quorum, 2)
    log = quorum.log()
    quorum.client().change_voters(AddVoter(two))
    with pytest.raises(InvalidCallError, match=r"brokers \[2\] are metadata voters"):
        find_log(CLUSTER, [1], {1: quorum.stores[1]}, as_logged=True)
    del quorum.stores[2]
    with pytest.raises(InvalidCallError, match="broker 2 is a metadata voter"):
        log.read()


def test_a_cluster_can_be_opened_in_the_middle_of_a_replacement() -> None:
    """I7: the driver that replaced the voter died between the two changes; the file is right."""
    quorum = Quorum(3)
    quorum.wipe(2)
    quorum.client().change_voters(RemoveVoter(2, returning=True))
    assert found(quorum, [1, 2, 3]) == [1, 3]
    add(quorum, 2)
    assert found(quorum, [1, 2, 3]) == [1, 3, 2]
