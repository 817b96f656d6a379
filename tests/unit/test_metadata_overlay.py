"""Copies of large mappings: they equal dicts, and cost only the changes."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.engine.metadata.overlay import Overlay

STEPS = st.lists(st.tuples(st.sampled_from(["set", "delete", "copy", "rebase"]), st.integers(0, 12)), max_size=60)


def check_same(overlay: Overlay[int, int], model: dict[int, int]) -> None:
    """Compare all operations of a mapping."""
    assert overlay == model
    assert model == overlay
    assert len(overlay) == len(model)
    assert sorted(overlay) == sorted(model)
    assert list(overlay.items()) == [(key, overlay[key]) for key in overlay]
    assert list(overlay.values()) == [overlay[key] for key in overlay]
    assert list(overlay.keys()) == list(overlay)
    assert [key in overlay for key in range(-1, 14)] == [key in model for key in range(-1, 14)]
    assert [overlay.get(key) for key in range(-1, 14)] == [model.get(key) for key in range(-1, 14)]
    assert repr(overlay) == repr(dict(overlay))


@pytest.mark.slow
@settings(max_examples=300)
@given(base=st.dictionaries(st.integers(0, 12), st.integers(), max_size=13), steps=STEPS)
def test_a_chain_of_copies_is_a_chain_of_dicts(base: dict[int, int], steps: list[tuple[str, int]]) -> None:
    """The original never changes."""
    overlay, model = Overlay(base), dict(base)
    copied: list[tuple[Overlay[int, int], dict[int, int]]] = [(Overlay(base), dict(base))]
    for at, (step, key) in enumerate(steps):
        match step:
            case "set":
                overlay[key] = model[key] = at
            case "delete" if key in model:
                del overlay[key], model[key]
            case "delete":
                with pytest.raises(KeyError):
                    del overlay[key]
            case "copy":
                copied.append((overlay, dict(model)))
                overlay = Overlay(overlay)
            case _:
                overlay.rebase()
        check_same(overlay, model)
    for before, then in copied:
        check_same(before, then)


def test_the_order_is_that_of_the_base_and_then_that_of_what_is_new() -> None:
    """The order must not depend on a process's hash seed."""
    overlay = Overlay({"b": 1, "a": 2, "c": 3})
    overlay["d"] = 4
    overlay["a"] = 5
    del overlay["c"]
    assert list(overlay.items()) == [("b", 1), ("a", 5), ("d", 4)]
    settled = Overlay(overlay)
    settled.rebase()
    assert settled.base is not overlay.base
    assert list(settled.items()) == [("b", 1), ("a", 5), ("d", 4)]


def test_a_copy_copies_the_changes_and_not_the_base() -> None:
    """Changes are stored separately until they reach a certain part of the base; then a new base is made."""
    first = dict.fromkeys(range(3200), 0)
    overlay = Overlay(first)
    for key in range(150):
        overlay = Overlay(overlay)
        if key % 2:
            overlay[key] = 1
        else:
            del overlay[key]
        overlay.rebase()
        if key < 100:
            assert overlay.base is first
            assert len(overlay.changed) + len(overlay.gone) == key + 1
    assert overlay.base is not first
    assert len(overlay.changed) + len(overlay.gone) == 150 - 101
    assert overlay == {key: int(key < 150) for key in range(3200) if key >= 150 or key % 2}


def test_a_key_that_is_missing_is_an_error_of_a_mapping() -> None:
    overlay = Overlay({1: 1, 2: 2})
    del overlay[1]
    for missing in (1, 3):
        with pytest.raises(KeyError):
            overlay[missing]


def test_an_overlay_can_be_pickled() -> None:
    overlay = Overlay({1: 1, 2: 2})
    overlay[3] = 3
    del overlay[1]
    assert pickle.loads(pickle.dumps(overlay)) == {2: 2, 3: 3}
