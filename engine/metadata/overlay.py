"""Copies of large mappings. The cost of a copy depends on the changes, not on the size of the mapping. Pure."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

_PART = 32
"""Changes are stored separately up to this fraction of the base."""


class Overlay(MutableMapping[K, V]):
    """A copy of a mapping that shares unchanged entries with it. The original must not change any more.

    A copy of an overlay copies only the changes since ``base``. When the changes have grown to a fraction of the
    base, ``rebase`` makes a new base that includes them. So a few changes of a large mapping cost almost nothing,
    and many changes cost no more than in a dict.
    """

    __slots__ = ("_size", "base", "changed", "gone")

    def __init__(self, original: Mapping[K, V]) -> None:
        self.base: Mapping[K, V] = original
        self.changed: dict[K, V] = {}
        """Entries set since; they override ``base``."""
        self.gone: set[K] = set()
        """Deleted keys of ``base``; none of them is in ``changed``."""
        self._size = len(original)
        if isinstance(original, Overlay):
            self.base, self.changed, self.gone = original.base, original.changed.copy(), original.gone.copy()

    def rebase(self) -> None:
        """Make a new base if there are many changes. Call this after the last change."""
        if _PART * (len(self.changed) + len(self.gone)) > len(self.base):
            base = dict(self.base)
            base.update(self.changed)
            for key in self.gone:
                del base[key]
            self.base, self.changed, self.gone = base, {}, set()

    def __getitem__(self, key: K) -> V:
        if key in self.changed:
            return self.changed[key]
        if key in self.gone:
            raise KeyError(key)
        return self.base[key]

    def __setitem__(self, key: K, value: V) -> None:
        self._size += key not in self
        self.changed[key] = value
        self.gone.discard(key)

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self._size -= 1
        self.changed.pop(key, None)
        if key in self.base:
            self.gone.add(key)

    def __contains__(self, key: object) -> bool:
        return key in self.changed or (key in self.base and key not in self.gone)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        """The keys of ``base`` in its order, then the new keys in the order in which they were set."""
        for key in self.base:
            if key not in self.gone:
                yield key
        for key in self.changed:
            if key not in self.base:
                yield key

    def items(self) -> ItemsView[K, V]:
        """Like ``dict.items``."""
        return _Items(self) if self.changed or self.gone else self.base.items()

    def values(self) -> ValuesView[V]:
        """Like ``dict.values``."""
        return _Values(self) if self.changed or self.gone else self.base.values()

    def __repr__(self) -> str:
        return repr(dict(self.items()))


class _Items(ItemsView[K, V]):
    """Iterates over entries faster than lookups of each key would."""

    _mapping: Overlay[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        base, changed, gone = self._mapping.base, self._mapping.changed, self._mapping.gone
        for key, value in base.items():
            if key in changed:
                yield key, changed[key]
            elif key not in gone:
                yield key, value
        for key, value in changed.items():
            if key not in base:
                yield key, value


class _Values(ValuesView[V]):
    _mapping: Overlay[object, V]

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping.items())
