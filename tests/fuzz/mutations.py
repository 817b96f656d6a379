"""One mutation of a file of the cluster: its bytes, its meaning, or its place.

The file and the mutation are drawn: kinds have weights, because there are a hundred segments and one
``_last_checkpoint``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stratalog.partitions.paths import DataName, base_name, parse_name
from tests.fuzz import mutations_of_metadata as metadata
from tests.fuzz.mutations_of_bytes import Mutated, mutate_bytes, splice
from tests.fuzz.mutations_of_json import mutate_json, mutate_lines
from tests.fuzz.mutations_of_parquet import mutate_parquet
from tests.fuzz.paths import Place, place_of
from tests.fuzz.sealing import description_digest, seal_register, seal_schedule

WEIGHTS = {
    "segment": 16,
    "remote segment": 6,
    "foreign file": 3,
    "state segment": 6,
    "snapshot": 5,
    "metadata batch": 12,
    "metadata snapshot": 6,
    "claim": 2,
    "epoch register": 10,
    "local start": 5,
    "high watermark": 3,
    "broker.json": 8,
    "schedule": 3,
    "description": 5,
    "delta entry": 8,
    "delta checkpoint": 3,
    "delta last checkpoint": 2,
    "cluster file": 2,
    "plan": 2,
}
EMPTY = ("high watermark",)
"""Files without content, whose names contain all information."""


@dataclass(frozen=True, slots=True)
class Specimen:
    """A file of the original."""

    path: str
    place: Place
    data: bytes


class Specimens:
    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.by_kind: dict[str, list[Specimen]] = {}
        for path, data in sorted(files.items()):
            place = place_of(path)
            if place.kind in WEIGHTS:
                self.by_kind.setdefault(place.kind, []).append(Specimen(path, place, data))
        self._kinds = [kind for kind in WEIGHTS if kind in self.by_kind]

    def draw(self, rng: random.Random, without: tuple[str, ...] = ()) -> Specimen:
        """Draw a file; kinds are drawn by their weight."""
        kinds = [kind for kind in self._kinds if kind not in without]
        (kind,) = rng.choices(kinds, [WEIGHTS[kind] for kind in kinds])
        return rng.choice(self.by_kind[kind])

    def like(self, rng: random.Random, specimen: Specimen) -> Specimen:
        """Another file of the same kind, if there is one."""
        return rng.choice(self.by_kind[specimen.place.kind])


def mutate_content(rng: random.Random, specimen: Specimen, specimens: Specimens) -> Mutated:
    """Replace the content of a file in a way that suits its kind."""
    if rng.random() < 0.25:
        if rng.random() < 0.3:
            return splice(rng, specimen.data, specimens.like(rng, specimen).data)
        return mutate_bytes(rng, specimen.data)
    try:
        return _MEANT[specimen.place.kind](rng, specimen.data)
    except (KeyError, ValueError, IndexError):
        return mutate_bytes(rng, specimen.data)


def description_name(path: str, data: bytes) -> str:
    """The path of a description with the digest of other content in its name."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/{name.partition('.')[0]}.{description_digest(data)}.json"


def _register(rng: random.Random, data: bytes) -> Mutated:
    changed = mutate_json(rng, data.rpartition(b"\n")[0])
    return Mutated(seal_register(changed.data), changed.what, True)


def _schedule(rng: random.Random, data: bytes) -> Mutated:
    changed = mutate_json(rng, data.partition(b"\n")[0])
    return Mutated(seal_schedule(changed.data), changed.what, True)


def _json(rng: random.Random, data: bytes) -> Mutated:
    changed = mutate_json(rng, data)
    return Mutated(changed.data, changed.what, True)


def _lines(rng: random.Random, data: bytes) -> Mutated:
    changed = mutate_lines(rng, data)
    return Mutated(changed.data, changed.what, True)


def _batch(rng: random.Random, data: bytes) -> Mutated:
    return metadata.mutate_batch(rng, data) if rng.random() < 0.5 else mutate_parquet(rng, data)


def _claim(rng: random.Random, data: bytes) -> Mutated:
    return Mutated(rng.choice((b"", b"x", b"\x1b[31m", b"\xff" * 64, b"9" * 100_000)), "another claimant", True)


_MEANT: Mapping[str, Callable[[random.Random, bytes], Mutated]] = {
    "segment": mutate_parquet,
    "remote segment": mutate_parquet,
    "foreign file": mutate_parquet,
    "state segment": mutate_parquet,
    "snapshot": mutate_parquet,
    "metadata batch": _batch,
    "metadata snapshot": mutate_parquet,
    "claim": _claim,
    "epoch register": _register,
    "local start": _register,
    "broker.json": _json,
    "schedule": _schedule,
    "description": _json,
    "delta entry": _lines,
    "delta checkpoint": mutate_parquet,
    "delta last checkpoint": _json,
    "plan": _json,
}


def last_batch(specimens: Specimens, root: str) -> tuple[Specimen, DataName]:
    """The last batch of a voter, after which the next one would follow."""
    found = [one for one in specimens.by_kind["metadata batch"] if one.place.root == root]
    named = [(one, name) for one in found if isinstance(name := parse_name(base_name(one.path)), DataName)]
    return max(named, key=lambda one: (one[1].epoch, one[1].base_offset))
