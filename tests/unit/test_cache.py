"""A cache that is bounded by weight."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.partitions.cache import BoundedCache


def test_the_least_recently_used_item_is_evicted_first() -> None:
    cache: BoundedCache[str, int] = BoundedCache(3)
    for number, key in enumerate("abc"):
        cache.put(key, number)
    assert cache.get("a") == 0
    cache.put("d", 3)
    assert [cache.get(key) for key in "abcd"] == [0, None, 2, 3]


def test_an_item_larger_than_the_cache_is_not_kept_and_evicts_nothing() -> None:
    cache: BoundedCache[str, int] = BoundedCache(3)
    cache.put("a", 1, 3)
    cache.put("b", 2, 4)
    assert (cache.get("a"), cache.get("b")) == (1, None)
    cache.put("a", 1, 5)
    assert (cache.get("a"), cache.weight) == (None, 0)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7))))
def test_the_bound_holds_whatever_is_cached(puts: list[tuple[int, int]]) -> None:
    cache: BoundedCache[int, int] = BoundedCache(6)
    weights: dict[int, int] = {}
    for key, weight in puts:
        cache.put(key, weight, weight)
        weights[key] = weight
        assert cache.weight == sum(weights[k] for k in weights if cache.get(k) is not None) <= 6
