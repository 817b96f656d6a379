"""Rules of removal: the records that each may remove, and whether a log follows it."""

from __future__ import annotations

import pytest

from stratalog.partitions.removal import (
    MOST_KEPT,
    CommittedRule,
    Rule,
    carried_out,
    next_rule,
    still_needed,
    to_rewrite,
)
from tests.unit.notation import log_of, text_of


def test_tombstones_stay_for_their_time_after_the_first_rule_over_them_was_carried_out() -> None:
    """KIP-534: the time begins when a record is first cleaned, whatever its timestamp. The commit of the next rule
    proves that the previous one was carried out.
    """
    rules: tuple[CommittedRule, ...] = ()
    found = []
    for now_ms, bound in ((0, 10), (50, 20), (100, 30), (149, 40), (150, 40), (400, 40)):
        rule = next_rule(rules, bound, now_ms, delete_retention_ms=100)
        rules = (*still_needed(rules, rule), CommittedRule(rule, now_ms))
        found.append((rule.generation, rule.bound, rule.tombstones_before, len(rules)))
    assert found == [(1, 10, 0, 1), (2, 20, 0, 2), (3, 30, 0, 3), (4, 40, 0, 4), (5, 40, 10, 4), (6, 40, 40, 1)]


def test_without_a_time_for_tombstones_the_next_rule_takes_them() -> None:
    assert next_rule((CommittedRule(Rule(1, 10), 5),), 20, 5, delete_retention_ms=0) == Rule(2, 20, 10)


def test_many_rules_within_the_time_of_tombstones_hold_none_of_them_forever() -> None:
    """Each rule that is kept also keeps the rule from which its time comes, up to the maximum number of rules."""
    rules: tuple[CommittedRule, ...] = ()
    before = []
    for now_ms in range(200):
        rule = next_rule(rules, now_ms, now_ms, delete_retention_ms=50)
        rules = (*still_needed(rules, rule), CommittedRule(rule, now_ms))
        before.append(rule.tombstones_before)
        assert rule.tombstones_before <= max(now_ms - 51, 0)
        assert len(rules) <= MOST_KEPT + 1
    assert before[-1] >= 200 - 3 * 51


def test_a_rule_never_takes_back_what_an_earlier_one_has_removed() -> None:
    earlier = (CommittedRule(Rule(1, 10, 5), 0),)
    assert next_rule(earlier, 10, 1, delete_retention_ms=10**9) == Rule(2, 10, 5)
    with pytest.raises(ValueError, match="offset 9"):
        next_rule(earlier, 9, 1, delete_retention_ms=0)


@pytest.mark.parametrize(
    ("names", "left"),
    [
        ("0.1 1.1 2-4.1 4.1 5.1", "0.1 1.1 2-4.1"),
        ("0-2.1.2 2-4.1.1 4.1", "2-4.1.1"),
        ("0-4.1.2 4.1", ""),
        ("0-2.1 2-6.1", "0-2.1"),  # a file that reaches across the bound
        ("0-4.1.3 4.1", ""),
    ],
)
def test_a_rule_has_yet_to_rewrite_only_links_of_older_generations_below_its_bound(names: str, left: str) -> None:
    log, rule = log_of(names), Rule(2, 4)
    assert " ".join(text_of(link.name) for link in to_rewrite(log, rule)) == left
    assert carried_out(log, rule) == (not left)
