"""Damage to the bytes of any file, independent of their meaning."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutated:
    """The changed bytes and a description of the change."""

    data: bytes
    what: str
    forged: bool = False
    """Whether every checksum and digest is right, so that the content looks as valid as the original."""


Mutator = Callable[[random.Random, bytes], Mutated]


def flip(rng: random.Random, data: bytes) -> Mutated:
    """Flip one to eight bits."""
    found = bytearray(data or b"\0")
    spots = [(rng.randrange(len(found)), rng.randrange(8)) for _ in range(rng.choice((1, 1, 1, 2, 8)))]
    for at, bit in spots:
        found[at] ^= 1 << bit
    return Mutated(
        bytes(found), f"flip {', '.join(f'bit {bit} of byte {at}' for at, bit in spots)} of {len(data)}"
    )


def overwrite(rng: random.Random, data: bytes) -> Mutated:
    """Overwrite some bytes: with zeros, ones, noise, digits."""
    at, size = _range(rng, data)
    fill = rng.choice((b"\0", b"\xff", b"9", b"[", b" "))
    put = rng.randbytes(size) if rng.random() < 0.3 else fill * size
    return Mutated(
        data[:at] + put + data[at + size :], f"overwrite [{at}, {at + size}) of {len(data)} by {put[:8]!r}.."
    )


def cut_end(rng: random.Random, data: bytes) -> Mutated:
    size = rng.randrange(len(data) + 1) if rng.random() < 0.7 else max(0, len(data) - rng.randrange(1, 12))
    return Mutated(data[:size], f"cut to {size} of {len(data)} bytes")


def cut_begin(rng: random.Random, data: bytes) -> Mutated:
    """Remove the beginning."""
    at = rng.randrange(len(data) + 1)
    return Mutated(data[at:], f"lose the first {at} of {len(data)} bytes")


def remove(rng: random.Random, data: bytes) -> Mutated:
    """Remove a part in the middle."""
    at, size = _range(rng, data)
    return Mutated(data[:at] + data[at + size :], f"remove [{at}, {at + size}) of {len(data)}")


def insert(rng: random.Random, data: bytes) -> Mutated:
    at = rng.randrange(len(data) + 1)
    put = rng.choice((rng.randbytes(rng.randrange(1, 64)), b"\0" * 512, b"[" * 5000, b"{" * 100, b"1" * 4400))
    return Mutated(data[:at] + put + data[at:], f"insert {len(put)} bytes {put[:8]!r}.. at {at} of {len(data)}")


def repeat(rng: random.Random, data: bytes) -> Mutated:
    """Repeat a part several times."""
    at, size = _range(rng, data)
    times = rng.choice((1, 1, 2, 50))
    return Mutated(
        data[: at + size] + data[at : at + size] * times + data[at + size :],
        f"repeat [{at}, {at + size}) of {len(data)} {times} times",
    )


def replace_all(rng: random.Random, data: bytes) -> Mutated:
    put = rng.choice(
        (b"", b"\0" * len(data), b"null", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 20_000)
    )
    put = rng.randbytes(rng.randrange(1, 4096)) if rng.random() < 0.2 else put
    return Mutated(put, f"replace all by {len(put)} bytes {put[:16]!r}..")


BYTES: Sequence[Mutator] = (flip, flip, flip, overwrite, cut_end, cut_begin, remove, insert, repeat, replace_all)


def mutate_bytes(rng: random.Random, data: bytes) -> Mutated:
    """Apply a random change."""
    return rng.choice(BYTES)(rng, data)


def splice(rng: random.Random, data: bytes, other: bytes) -> Mutated:
    """Join the beginning of one file and the end of another; or return the other one."""
    if rng.random() < 0.3:
        return Mutated(other, f"all of another file of {len(other)} bytes")
    at, then = rng.randrange(len(data) + 1), rng.randrange(len(other) + 1)
    return Mutated(data[:at] + other[then:], f"{at} bytes, then those of another file from {then} on")


def _range(rng: random.Random, data: bytes) -> tuple[int, int]:
    at = rng.randrange(len(data) + 1)
    return at, min(rng.choice((1, 2, 8, 64, 1024)), len(data) - at)
