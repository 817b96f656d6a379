"""Files of an Iceberg table by the file systems of pyiceberg (``stratalog.tiering.iceberg_files``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.partitions.errors import CorruptionError

TableFiles = pytest.importorskip("stratalog.tiering.iceberg_files", exc_type=ImportError).TableFiles


@pytest.mark.parametrize("kind", ["pyarrow.PyArrowFileIO", "fsspec.FsspecFileIO"])
@pytest.mark.parametrize("spelled", ["file://{}", "{}"])
def test_the_files_of_a_table_are_listed_with_any_file_system(tmp_path: Path, kind: str, spelled: str) -> None:
    module, _, name = kind.partition(".")
    inner = getattr(pytest.importorskip(f"pyiceberg.io.{module}"), name)({})
    folder = tmp_path / "a table" / tmp_path.name
    (folder / "metadata").mkdir(parents=True)
    for path in ("metadata/a.avro", "b.json"):
        (folder / path).write_bytes(b"x")
    files = TableFiles(inner, inner, spelled.format(folder), "t")
    assert files.walk() == {
        f"file://{folder}/{path}": spelled.format(f"{folder}/{path}") for path in ("metadata/a.avro", "b.json")
    }
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "c.avro").write_bytes(b"x")
    (folder / "link").symlink_to(outside)
    with pytest.raises(CorruptionError, match="not a regular file"):
        files.delete(spelled.format(f"{folder}/link/c.avro"))
    files.delete(spelled.format(f"{folder}/b.json"))
    assert sorted(path.name for path in (*folder.iterdir(), *outside.iterdir())) == ["c.avro", "link", "metadata"]
