"""The cluster with a key: foreign content in place of signed content counts as damage, and is never followed.

The attacker changes bytes and fixes their checksums, leaves the tag unchanged or removes it, or signs with another
key. Readers then accept only signed content, or nothing.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Mapping
from functools import partial

from stratalog.engine.config.key_source import read_key
from stratalog.engine.driver.stored_schedule import SchedulePlace
from stratalog.engine.quorum.batch import KIND, decode_batch
from stratalog.engine.quorum.checkpoints import read_checkpoint
from stratalog.engine.quorum.voter import Voter
from stratalog.engine.upkeep.tiering.point import read_description
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import UnsignedError
from stratalog.partitions.paths import (
    BROKER_FILE,
    CheckpointName,
    DataName,
    base_name,
    parse_name,
    parse_schedule_name,
)
from stratalog.partitions.root import check_broker_file, check_signed, read_broker_file
from stratalog.partitions.segments.signature import check_signature_of
from stratalog.partitions.store.memory import MemoryStore
from tests.fuzz.changes import Change
from tests.fuzz.mutations import WEIGHTS, Specimen, Specimens, description_name, mutate_content
from tests.fuzz.oracle import WrongError

CLUSTER_ID = "c"
TEXT = base64.b64encode(b"the secret of the fuzzed cluster").decode()
KEY = read_key(CLUSTER_ID, lambda: TEXT)


def believed(change: Change) -> Change:
    """The change as a holder of the key sees it: no signed content was forged."""
    if change.kind.partition(":")[0] in ("claim", *(kind for kind in READERS if kind != "broker.json")):
        change.forged = change.metadata = False
    return change


class SignedDecoders:
    """Decodes signed content like ``Decoders``: it is read unchanged, or refused."""

    def __init__(self, specimens: Specimens) -> None:
        self._specimens = specimens
        self._known: dict[str, object] = {}
        self.what = ""
        self.kind = ""

    def draw(self, rng: random.Random) -> Callable[[], None]:
        """The functions, which raise WrongError or the errors of the readers."""
        specimen = self._specimens.draw(rng, tuple(kind for kind in WEIGHTS if kind not in READERS))
        mutated = mutate_content(rng, specimen, self._specimens)
        self.kind, self.what = f"signed {specimen.place.kind}", f"{specimen.path}: {mutated.what}"
        return partial(self._run, specimen, mutated.data)

    def _run(self, specimen: Specimen, data: bytes) -> None:
        read = READERS[specimen.place.kind]
        if specimen.path not in self._known:
            self._known[specimen.path] = read(specimen, specimen.data)
        if read(specimen, data) != self._known[specimen.path]:
            raise WrongError("wrong metadata", f"{specimen.path}: what a stranger has written is followed")


def _memory() -> MemoryStore:
    return MemoryStore("memory://b1", ManualClock())


def _batch(specimen: Specimen, data: bytes) -> object:
    name = parse_name(base_name(specimen.path))
    assert isinstance(name, DataName)
    check_signature_of(KEY, KIND, str(name), data, specimen.path)
    return decode_batch(CLUSTER_ID, name, data, specimen.path)


def _snapshot(specimen: Specimen, data: bytes) -> object:
    name = parse_name(base_name(specimen.path))
    assert isinstance(name, CheckpointName)
    voter = Voter(1, _memory(), "0" * 32, KEY)
    voter.store.create(voter.path(name), data)
    return read_checkpoint(CLUSTER_ID, voter, name, voter.stat(name))


def _broker_file(specimen: Specimen, data: bytes) -> object:
    store = _memory()
    store.create(BROKER_FILE, data)
    found = read_broker_file(store)
    assert found is not None
    check_broker_file(found, store, CLUSTER_ID, int(specimen.place.root[1:]))
    check_signed(found, store, KEY)
    return found


def _description(specimen: Specimen, data: bytes) -> object:
    remote = _memory()
    remote.create(description_name(specimen.path, data).partition("/")[2], data)
    return read_description(remote, CLUSTER_ID, KEY)


def _schedule(specimen: Specimen, data: bytes) -> object:
    store, path = _memory(), specimen.path.partition("/")[2]
    store.create(path, data)
    version = parse_schedule_name(base_name(path))
    assert version is not None
    incarnation, of, _ = path.split("/")
    found = SchedulePlace(store, "", incarnation, of, KEY).read(version)
    if not found:
        raise UnsignedError(f"{path} counts for nothing")
    return found


READERS: Mapping[str, Callable[[Specimen, bytes], object]] = {
    "metadata batch": _batch,
    "metadata snapshot": _snapshot,
    "broker.json": _broker_file,
    "description": _description,
    "schedule": _schedule,
}
"""The readers of signed content, with everything that trusts it."""
