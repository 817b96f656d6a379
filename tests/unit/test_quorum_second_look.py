"""Storage of one voter returns other bytes when a file is read again: the verified bytes count."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from isal import isal_zlib

from stratalog.engine.quorum.checkpoints import read_checkpoint
from stratalog.engine.quorum.voter import Voter
from stratalog.partitions.errors import UnsignedError
from tests.unit.quorum_harness import CLUSTER, HookedStore, Quorum
from tests.unit.quorum_snapshots import committed, listing, path, snapshot
from tests.unit.test_quorum_key import KEY, signed

CRC_POLYNOMIAL = 0x104C11DB7


def forged(content: bytes) -> bytes:
    """Other bytes in the middle with the same CRC-32; a CRC-32 is no signature."""
    changed = bytearray(content)
    for place, bit in enumerate(f"{CRC_POLYNOMIAL:b}"):
        at = 8 * (len(content) // 3) + place
        changed[at // 8] ^= int(bit) << at % 8
    assert isal_zlib.crc32(changed) == isal_zlib.crc32(content)
    assert changed != content
    return bytes(changed)


def from_the_third_time_on(other: Callable[[bytes], bytes]) -> Callable[[str, str, Callable[[], object]], object]:
    """A hook: the first two reads, which verify a snapshot where it was made and make the first copy, get its
    content; later reads get other content.
    """
    opened = 0

    def hook(what: str, name: str, call: Callable[[], object]) -> object:
        nonlocal opened
        if what == "open" and name.endswith(".checkpoint"):
            opened += 1
            if opened > 2:
                with call() as file:  # type: ignore[attr-defined]
                    return io.BytesIO(other(file.read()))
        return call()

    return hook


def test_a_voter_that_gives_other_bytes_spoils_no_other_one() -> None:
    quorum = Quorum(3, key=KEY)
    committed(quorum.log(), 1, 2)
    cut = quorum.hooked()
    cut[0].hook = from_the_third_time_on(forged)
    snapshot(quorum, quorum.log(through=cut))
    (name,) = listing(quorum, 1).checkpoints
    assert name in listing(quorum, 2).checkpoints
    assert name not in listing(quorum, 3).checkpoints, "it was verified again, and was not what is signed"
    held = {quorum.stores[broker].read(path(quorum, broker, name)) for broker in (1, 2)}
    assert len(held) == 1


@pytest.mark.slow
@pytest.mark.parametrize("time", [1, 2, 3])
def test_only_the_verified_part_of_a_large_snapshot_is_believed(
    time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog.snapshots.reader.HELD_BYTES", 1000)
    quorum = signed()
    held, stored = max(listing(quorum, 1).checkpoints.items())
    store = HookedStore(quorum.stores[1])
    content = store.read(stored.name)
    opened = 0

    def hook(what: str, name: str, call: Callable[[], object]) -> object:
        nonlocal opened
        opened += what == "open"
        return io.BytesIO(forged(content)) if what == "open" and opened >= time else call()

    store.hook = hook
    voter = Voter(1, store, quorum.voters[0].directory_id, KEY)
    if time == 3:  # no driver reads it again
        assert read_checkpoint(CLUSTER, voter, held, stored).image.configs == {"segment.bytes": "2"}
    else:
        with pytest.raises(UnsignedError):
            read_checkpoint(CLUSTER, voter, held, stored)
