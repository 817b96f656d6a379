"""The functions that decode the data of storage, clients and operators, each run over mutated input in memory.

A decoder raises one of stratalog's errors, or the error in its contract (``ValueError`` if the caller names the
file); otherwise it returns content that was once written, unless the mutation was made to look valid.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from stratalog.engine.config.cluster_config import CLUSTER_CONFIGS
from stratalog.engine.config.cluster_file import load_cluster_file
from stratalog.engine.config.settings import cluster_config, topic_config
from stratalog.engine.config.topic_config import TOPIC_CONFIGS
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.metadata import description, dump, records
from stratalog.engine.metadata.fold import apply
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.reassignment_plan import check_plan, parse_plan, plain_plan
from stratalog.engine.quorum.batch import Batch, decode_batch
from stratalog.engine.reading.stream_offsets import StreamOffsets
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS
from stratalog.engine.state.keyed import FORMATS
from stratalog.partitions import paths
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile, parse, resolve
from stratalog.partitions.lookup import FileSlice, first_at_or_after
from stratalog.partitions.paths import CheckpointName, DataName, EpochName, base_name, folder_of, parse_name
from stratalog.partitions.producers import decode as decode_producers
from stratalog.partitions.records import physical_schema, type_from_json
from stratalog.partitions.root import read_broker_file
from stratalog.partitions.segments.check import check_segment
from stratalog.partitions.segments.reader import read_batches, read_segment
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.protocol import StoredObject
from stratalog.partitions.store.reader import RangeReader
from stratalog.snapshots.reader import verify_snapshot
from stratalog.tiering import schedule
from stratalog.tiering.foreign_commits import parse_commit
from stratalog.tiering.foreign_files import Range, records_in
from stratalog.tiering.statistics import statistics_json
from tests.fuzz import mutations_of_metadata as metadata
from tests.fuzz.changes import Change
from tests.fuzz.mutations import Specimen, Specimens, mutate_content
from tests.fuzz.mutations_of_bytes import Mutated, mutate_bytes
from tests.fuzz.mutations_of_json import ODD_TEXTS, mutate_json
from tests.fuzz.oracle import Oracle, WrongError
from tests.fuzz.original import REWRITTEN, Original

CLUSTER_ID = "c"
EVERYTHING = (0, 2**62)


class Held:
    """Bytes in memory, as a store returns them."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def open(self, source_object: StoredObject) -> BinaryIO:
        return RangeReader(len(self._data), lambda start, end: self._data[start:end]).as_file()

    def uri_of(self, name: str) -> str:
        return f"held://{name}"


class Decoders:
    """Each draw is a mutation and the functions to run over it; ``kind`` and ``what`` describe the mutation."""

    def __init__(self, specimens: Specimens, scratch: Path) -> None:
        self._specimens = specimens
        self._scratch = scratch
        self._rows: dict[str, list[pa.RecordBatch]] = {}
        self.what = ""
        self.kind = ""

    def draw(self, rng: random.Random) -> Callable[[], None]:
        """The functions, which raise WrongError or the errors of the decoders."""
        others = list(self._others.items())
        if rng.random() < 0.25:
            self.kind, run = rng.choice(others)
            self.what = "see the seed"
            return partial(run, rng)
        specimen = self._specimens.draw(rng, ("high watermark", "claim"))
        self.kind = specimen.place.kind
        mutated = mutate_content(rng, specimen, self._specimens)
        self.what = f"{specimen.path}: {mutated.what}"
        return partial(self._decoders[self.kind], specimen, mutated)

    @cached_property
    def _decoders(self) -> Mapping[str, Callable[[Specimen, Mutated], None]]:
        return {
            "segment": self._segment,
            "remote segment": self._segment,
            "foreign file": _foreign_file,
            "state segment": self._segment,
            "snapshot": self._snapshot,
            "metadata batch": self._batch,
            "metadata snapshot": self._metadata_snapshot,
            "epoch register": self._lineage,
            "local start": _local_start,
            "broker.json": _broker_file,
            "schedule": _schedule,
            "description": _description,
            "delta entry": _delta_entry,
            # Only delta-rs reads it, so the operations test it.
            "delta checkpoint": lambda specimen, mutated: None,
            "delta last checkpoint": lambda specimen, mutated: None,
            "cluster file": self._cluster_file,
            "plan": self._plan,
        }

    @cached_property
    def _others(self) -> Mapping[str, Callable[[random.Random], None]]:
        return {
            "metadata record": self._record,
            "metadata snapshot record": self._snapshot_record,
            "state record": self._state_record,
            "declared type": self._declared_type,
            "stream offsets": self._stream_offsets,
            "config value": self._config,
            "name": self._name,
            "listing": self._listing,
            "text": self._text,
        }

    # -------------------------------------------------------------------------------- data files

    def _segment(self, specimen: Specimen, mutated: Mutated) -> None:
        name = parse_name(base_name(specimen.path))
        assert isinstance(name, DataName)
        file = DataFile(name, StoredObject(specimen.path, len(mutated.data), 0, ""))
        held = Held(mutated.data)
        wrong: Exception | None = None
        for decode in (
            lambda: statistics_json(read_segment(held, file, remembered=False)),
            lambda: self._same_rows(specimen, mutated, list(read_batches(held, file, *EVERYTHING))),
            lambda: list(read_batches(held, file, name.base_offset + 1, 2**62, ["offset", "value"])),
            lambda: first_at_or_after([FileSlice(held, file, 0, 2**40)], 2_000_000),  # type: ignore[arg-type]
            lambda: self._verified(specimen, mutated, held, file),
            lambda: self._state(specimen, held, file),
        ):
            try:
                decode()
            except Exception as error:
                # Each function runs, whatever the result of the previous one; a finding takes precedence over one
                # of stratalog's errors.
                if wrong is None or not Oracle.is_own(error):
                    wrong = error
        if wrong is not None:
            raise wrong

    def _same_rows(self, specimen: Specimen, mutated: Mutated, rows: list[pa.RecordBatch]) -> None:
        if not mutated.forged and mutated.data != specimen.data and not self._is_whole(mutated.data):
            known = self._rows_of(specimen)
            if pa.Table.from_batches(rows) != pa.Table.from_batches(known):
                raise WrongError("wrong data", f"{specimen.path} gives other records")

    def _verified(self, specimen: Specimen, mutated: Mutated, held: Held, file: DataFile) -> None:
        checked = check_segment(held, file)
        sound = mutated.forged or mutated.data == specimen.data or self._is_whole(mutated.data)
        if not checked.bad and not sound:
            raise WrongError("wrong data", f"{specimen.path}: verify finds nothing")

    def _is_whole(self, data: bytes) -> bool:
        """Whether the bytes are those of another unchanged file of the cluster."""
        return data in self._whole

    @cached_property
    def _whole(self) -> frozenset[bytes]:
        return frozenset(one.data for some in self._specimens.by_kind.values() for one in some)

    def _rows_of(self, specimen: Specimen) -> list[pa.RecordBatch]:
        if specimen.path not in self._rows:
            name = parse_name(base_name(specimen.path))
            assert isinstance(name, DataName)
            file = DataFile(name, StoredObject(specimen.path, len(specimen.data), 0, ""))
            self._rows[specimen.path] = list(read_batches(Held(specimen.data), file, *EVERYTHING))
        return self._rows[specimen.path]

    def _state(self, specimen: Specimen, held: Held, file: DataFile) -> None:
        if specimen.place.topic in INTERNAL_TOPICS:
            form = FORMATS[specimen.place.topic]
            form.apply_batches(form.empty, 0, read_batches(held, file, *EVERYTHING, ["key", "value"]))

    def _snapshot(self, specimen: Specimen, mutated: Mutated) -> None:
        stored = StoredObject(specimen.path, len(mutated.data), 0, "")
        folder = next(part for part in specimen.path.split("/") if paths.parse_topic_folder(part) is not None)
        topic = paths.parse_topic_folder(folder)
        assert topic is not None
        found = verify_snapshot(Held(mutated.data), stored, owner=topic[1], partition=0)
        list(found.batches())
        if not mutated.forged and mutated.data != specimen.data and not self._is_whole(mutated.data):
            raise WrongError("wrong data", f"{specimen.path} is taken for a whole snapshot")

    # --------------------------------------------------------------------------------- metadata

    @cached_property
    def _batches(self) -> list[Batch]:
        """All batches of the log, in order."""
        found: dict[DataName, Batch] = {}
        for one in self._specimens.by_kind["metadata batch"]:
            name = parse_name(base_name(one.path))
            assert isinstance(name, DataName)
            found[name] = decode_batch(CLUSTER_ID, name, one.data, one.path)
        return [found[name] for name in sorted(found)]

    @cached_property
    def _images(self) -> dict[int, ClusterImage]:
        """The image before each batch, and after the last, by offset."""
        image = ClusterImage()
        images = {0: image}
        for batch in self._batches:
            image = apply(image, batch.name.base_offset, batch.records)
            images[batch.next_offset] = image
        return images

    @property
    def _image(self) -> ClusterImage:
        return self._images[max(self._images)]

    def _batch(self, specimen: Specimen, mutated: Mutated) -> None:
        name = parse_name(base_name(specimen.path))
        assert isinstance(name, DataName)
        batch = decode_batch(CLUSTER_ID, name, mutated.data, specimen.path)
        before = self._images.get(batch.name.base_offset, self._image)
        apply(before, batch.name.base_offset, batch.records)
        if not mutated.forged and mutated.data != specimen.data and not self._is_whole(mutated.data):
            known = decode_batch(CLUSTER_ID, name, specimen.data, specimen.path)
            if batch != known:
                raise WrongError("wrong metadata", f"{specimen.path} gives other records")

    def _record(self, rng: random.Random) -> None:
        batch = rng.choice(self._batches)
        values, what = metadata.mutate_values(rng, [records.encode(record) for record in batch.records])
        self.what = f"batch at {batch.name.base_offset}: {what}"
        image = apply(
            self._images[batch.name.base_offset], batch.name.base_offset, [records.decode(v) for v in values]
        )
        self._use_image(image)

    def _use_image(self, image: ClusterImage) -> None:
        """Use an image as every operation does."""
        cluster_config(image.configs)
        for topic in image.topics.values():
            topic_config(topic.configs, image.configs)
            for _ in image.views(topic.name):
                pass
        description.encode(description.describe(image))
        again = dump.load(map(dump.decode, map(dump.encode, dump.dump(image))), image.next_offset)
        if again != image:
            raise WrongError("wrong metadata", "the image is another one after a snapshot")

    def _metadata_snapshot(self, specimen: Specimen, mutated: Mutated) -> None:
        stored = StoredObject(specimen.path, len(mutated.data), 0, "")
        found = verify_snapshot(Held(mutated.data), stored, owner=CLUSTER_ID, partition=0)
        name = parse_name(base_name(specimen.path))
        assert isinstance(name, CheckpointName)
        dump.load(map(dump.decode, found.values()), name.end_offset)

    def _snapshot_record(self, rng: random.Random) -> None:
        values, what = metadata.mutate_values(rng, [dump.encode(record) for record in dump.dump(self._image)])
        self.what = f"metadata snapshot: {what}"
        dump.load(map(dump.decode, values), self._image.next_offset)

    # -------------------------------------------------------------------------------- other decoders

    def _lineage(self, specimen: Specimen, mutated: Mutated) -> None:
        found = Lineage.from_json(mutated.data, specimen.path)
        known = Lineage.from_json(specimen.data, specimen.path)
        if not mutated.forged and found != known and not self._is_whole(mutated.data):
            raise WrongError("wrong data", f"{specimen.path} gives another lineage")

    def _cluster_file(self, specimen: Specimen, mutated: Mutated) -> None:
        path = self._scratch / "cluster.toml"
        path.write_bytes(mutated.data)
        load_cluster_file(path)

    def _plan(self, specimen: Specimen, mutated: Mutated) -> None:
        check_plan(self._image, plain_plan(parse_plan(mutated.data, "plan.json")))

    def _state_record(self, rng: random.Random) -> None:
        form = FORMATS[rng.choice(sorted(FORMATS))]
        some = [one for one in self._specimens.by_kind["state segment"] if one.place.topic == form.topic]
        machine, offset = form.empty, 0
        rows = [row for one in some[:40] for row in pa.Table.from_batches(self._rows_of(one)).to_pylist()]
        row = rng.choice(rows)
        key, value = row["key"], row["value"]
        of_key = value is None or rng.random() < 0.3
        changed = _json_or_bytes(rng, key if of_key else value)
        key, value = (changed.data, value) if of_key else (key, changed.data)
        self.what = f"{form.topic}: {changed.what}"
        record = form.codec.decode(key, value)
        machine = machine.apply(offset, [record])
        machine.apply(offset + 1, [record])
        form.load(machine.dump(), machine.next_offset)

    def _declared_type(self, rng: random.Random) -> None:
        topics = [topic for topic in self._image.topics.values() if topic.value_schema is not None]
        text = rng.choice(topics).value_schema or ""
        changed = _json_or_bytes(rng, text.encode())
        self.what = f"declared type: {changed.what}"
        type_from_json(changed.data.decode("utf-8", "surrogateescape"))

    def _stream_offsets(self, rng: random.Random) -> None:
        sound = {
            "topics": {"plain": {"topicId": "f" * 32, "partitions": {"0": {"offset": 3, "leaderEpoch": 1}}}},
            "initial": True,
            "began": {"plain": {"0": {"offset": 1}}},
        }
        changed = mutate_json(rng, json.dumps(sound).encode())
        self.what = f"stream offsets: {changed.what}"
        try:
            found: Any = json.loads(changed.data)
        except (ValueError, RecursionError):
            return  # Spark parses the text, and returns its meaning
        if isinstance(found, dict):
            StreamOffsets.from_json(found).to_json()

    def _config(self, rng: random.Random) -> None:
        key = rng.choice([*TOPIC_CONFIGS, *CLUSTER_CONFIGS])
        value = rng.choice(
            (*ODD_TEXTS, "1e999", "nan", "-1", "0", str(2**63), str(10**400), "true", "None", "1_0", "٣")
        )
        self.what = f"config {key}={value[:60]!r}"
        if key in CLUSTER_CONFIGS:
            cluster_config({key: value})
        else:
            topic_config({key: value}, {})

    def _name(self, rng: random.Random) -> None:
        specimen = self._specimens.draw(rng)
        text = specimen.path if rng.random() < 0.5 else base_name(specimen.path)
        if rng.random() < 0.3:
            text = text.replace("/0.", f"/{rng.choice(('9' * 4400, '٣', '-1', '', '00', '1e5'))}.", 1)
            text = text.replace("/0/", f"/{rng.choice(('9' * 4400, '٣', '-1', '', '00'))}/", 1)
        else:
            text = mutate_bytes(rng, text.encode()).data.decode("utf-8", "surrogateescape")
        self.what = f"name {text[:120]!r}"
        found = parse_name(text)
        if found is not None and str(found) != text:
            raise WrongError("wrong data", f"{text!r} is read as {found}")
        for parse_path in (
            paths.parse_file_path,
            paths.parse_replica_path,
            paths.parse_remote_segment_path,
            paths.parse_published_path,
            paths.parse_topic_folder,
            paths.parse_schedule_name,
            paths.parse_description,
            paths.is_top_folder,
        ):
            parse_path(text)

    def _listing(self, rng: random.Random) -> None:
        specimen = rng.choice(self._specimens.by_kind["segment"])
        folder = folder_of(specimen.path)
        files = [one for some in self._specimens.by_kind.values() for one in some if folder_of(one.path) == folder]
        names = [base_name(one.path) for one in files]
        done = []
        for _ in range(rng.choice((1, 2, 4))):
            at = rng.randrange(len(names))
            numbers = [part for part in names[at].replace("-", ".").split(".") if part.isdecimal()]
            if not numbers:
                continue
            number = rng.choice(numbers)
            odd = rng.choice((int(number) + 1, int(number) + 7, 0, 10 ** len(number) - 1, 2**31, 2**63))
            new = names[at].replace(number, f"{odd:0{len(number)}d}", 1)
            done.append(f"{names[at]} -> {new}")
            if rng.random() < 0.5:
                names[at] = new
            else:
                names.append(new)
        self.what = f"listing of {folder}: {'; '.join(done)}"
        listing = parse(folder, [StoredObject(f"{folder}/{name}", 1, 0, "") for name in dict.fromkeys(names)])
        registers = [one for one in files if isinstance(parse_name(base_name(one.path)), EpochName)]
        lineage = Lineage.from_json(max(registers, key=lambda one: one.path).data, "register")
        log = resolve(listing, lineage, lambda file: file.name.base_offset + 1)
        if not log.local_start <= log.high_watermark <= max(log.log_end, log.local_start):
            raise WrongError(
                "wrong data", f"{log.local_start} <= {log.high_watermark} <= {log.log_end} does not hold"
            )

    def _text(self, rng: random.Random) -> None:
        odd = rng.choice(ODD_TEXTS)
        self.what = f"text {odd[:40]!r}"
        report = Report("fuzz", [{"name": odd, "n": 1}], [Failure(odd, "CORRUPT_MESSAGE", odd)], notes=[odd])
        _oracle_of_text().check_report(report)


def _json_or_bytes(rng: random.Random, data: bytes) -> Mutated:
    try:
        return mutate_json(rng, data) if rng.random() < 0.8 else mutate_bytes(rng, data)
    except ValueError:
        return mutate_bytes(rng, data)


def _foreign_file(specimen: Specimen, mutated: Mutated) -> None:
    store = MemoryStore()
    store.create("f", mutated.data)
    wanted = Range(0, 0, REWRITTEN, specimen.path)
    for _ in records_in(store, store.list(""), wanted, physical_schema()):
        pass


def _local_start(specimen: Specimen, mutated: Mutated) -> None:
    with suppress(ValueError):  # as its contract says: the caller names the file
        decode_producers(mutated.data)


def _broker_file(specimen: Specimen, mutated: Mutated) -> None:
    store = MemoryStore("memory://b1", ManualClock())
    store.create(paths.BROKER_FILE, mutated.data)
    read_broker_file(store)


def _schedule(specimen: Specimen, mutated: Mutated) -> None:
    found = schedule.decode(mutated.data)
    found.due(1_700_000_000_000, 3_600_000)
    found.assigned(dict.fromkeys(found.entries, 3)).next_due_ms([key for key, _ in found.entries])
    schedule.encode(found)


def _description(specimen: Specimen, mutated: Mutated) -> None:
    description.encode(description.decode(mutated.data, specimen.path))


def _delta_entry(specimen: Specimen, mutated: Mutated) -> None:
    str(parse_commit(3, mutated.data, specimen.path))


def _oracle_of_text() -> Oracle:
    return Oracle(Original(0, {}, {}, {}, {}, {}, {}), Change("text", "", ""))
