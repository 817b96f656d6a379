"""Single entries of a Delta log, as other programs write them."""

from __future__ import annotations

import json

import pytest

from stratalog.partitions.errors import CorruptionError
from stratalog.tiering.foreign_commits import parse_commit


@pytest.mark.parametrize(
    "info", [{}, {"commitInfo": {}}, {"commitInfo": {"operation": 7, "timestamp": 2**60, "userName": None}}]
)
def test_the_text_of_a_commit_leaves_out_missing_information(info: dict[str, object]) -> None:
    assert str(parse_commit(3, json.dumps(info).encode(), "it")) == "a commit at version 3"


def test_an_entry_that_is_invalid_is_refused() -> None:
    with pytest.raises(CorruptionError, match="it is not a valid entry of a Delta log"):
        parse_commit(3, b"{", "it")


def test_a_commit_whose_actions_do_not_say_so_changes_data() -> None:
    """Delta protocol, "Add File and Remove File": dataChange is required and has no default."""
    assert parse_commit(3, b'{"remove": {"path": "x"}}', "it").changes_data
