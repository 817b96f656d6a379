"""``cluster.toml``: what it says, and one clear error for everything that is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.engine.config.cluster_file import BrokerEntry, load_cluster_file
from stratalog.partitions.errors import EnvironmentUnusableError, InvalidCallError, UnsupportedStoreError
from stratalog.partitions.store import open_store
from stratalog.partitions.store.protocol import StoreOptions

GOOD = """
[cluster]
id = "c"
remote = "s3://lake/flights/"
voters = [1]

[[brokers]]
id = 1
rack = "a"
log_dir = "one"

[[brokers]]
id = 2
log_dir = "s3://bucket/two"

[s3]
endpoint_url = "https://s3.example.org"
timeout_s = 5
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "cluster.toml"
    path.write_text(text)
    return path


def refuse(folder: Path, text: str, message: str) -> None:
    path = write(folder, text)
    with pytest.raises(InvalidCallError, match=message) as caught:
        load_cluster_file(path)
    assert str(path) in str(caught.value)


def test_a_cluster_file_says_who_is_where(tmp_path: Path) -> None:
    file = load_cluster_file(write(tmp_path, GOOD))
    assert (file.cluster_id, file.remote, file.voters) == ("c", "s3://lake/flights", (1,))
    assert file.brokers == (
        BrokerEntry(1, "a", f"file://{tmp_path}/one"),
        BrokerEntry(2, None, "s3://bucket/two"),
    )
    assert file.store_options == StoreOptions(endpoint_url="https://s3.example.org", timeout_s=5)
    assert file.warnings == ()
    assert file.broker(2) == file.brokers[1]
    assert file.broker(3) is None


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False)])
def test_a_server_may_be_said_to_complete_uploads_exclusively(tmp_path: Path, text: str, value: bool) -> None:
    file = load_cluster_file(write(tmp_path, GOOD + f"exclusive_multipart = {text}\n"))
    assert file.store_options.exclusive_multipart is value


def test_the_example_is_a_good_one() -> None:
    file = load_cluster_file(Path(__file__).parents[2] / "conf" / "cluster.toml")
    assert [broker.broker_id for broker in file.brokers] == [1, 2, 3]
    assert len({broker.rack for broker in file.brokers}) == 3


@pytest.mark.parametrize(
    ("log_dir", "address"),
    [
        ("one", "{folder}/one"),
        ("./one/", "{folder}/one"),
        ("../one", "{parent}/one"),
        ("/data/one/", "/data/one"),
        ("file:///data//one/", "/data/one"),
    ],
)
def test_folders_become_absolute(tmp_path: Path, log_dir: str, address: str) -> None:
    file = load_cluster_file(write(tmp_path, GOOD.replace('"one"', f'"{log_dir}"')))
    wanted = address.format(folder=tmp_path, parent=tmp_path.parent)
    assert file.brokers[0].log_dir == f"file://{wanted}"


def test_an_even_number_of_voters_is_a_warning(tmp_path: Path) -> None:
    file = load_cluster_file(write(tmp_path, GOOD.replace("[1]", "[1, 2]")))
    assert len(file.warnings) == 1
    assert "even number" in file.warnings[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("voters", "voter", "cluster: unknown key 'voter'; did you mean 'voters'"),
        (
            'log_dir = "one"',
            'logdir = "one"',
            r"brokers\[0\]: unknown key 'logdir'; did you mean 'log_dir'",
        ),
        ("[s3]", "[s4]", "top level: unknown key 's4'; did you mean 's3'"),
        ("timeout_s", "timeouts", "s3: unknown key 'timeouts'; did you mean 'timeout_s'"),
        ('id = "c"', "", "cluster: id is missing"),
        ('id = "c"', 'id = ""', "cluster.id: Expected str of length >= 1"),
        ('id = "c"', 'id = "a b"', "cluster.id: 'a b': use 1 to 64 of"),
        ('id = "c"', "id = 7", "cluster.id: Expected str, got int"),
        ("id = 2", "id = 1", r"brokers\[1\].id: 1 is another broker's, too: each has its own"),
        ("id = 2", "id = -2", r"brokers\[1\].id: Expected int >= 0"),
        ("id = 2", 'id = "2"', r"brokers\[1\].id: Expected int, got str"),
        ("id = 2", "id = true", r"brokers\[1\].id: Expected int, got bool"),
        ('log_dir = "one"', "", r"brokers\[0\]: log_dir is missing"),
        ("[1]", "[3]", r"cluster.voters: \[3\]: name one or more of the brokers \[1, 2\], each once"),
        ("[1]", "[]", "cluster.voters: Expected array of length >= 1"),
        ("[1]", "[1, 1]", r"cluster.voters: \[1, 1\]: name one or more"),
        ("[1]", '["1"]', r"cluster.voters\[0\]: Expected int, got str"),
        ("[1]", "1", "cluster.voters: Expected array, got int"),
        ("timeout_s = 5", 'timeout_s = "5"', "s3.timeout_s: Expected float, got str"),
        ("timeout_s = 5", "exclusive_multipart = 1", "s3.exclusive_multipart: Expected bool.*, got int"),
        ("timeout_s = 5", "timeout_s = 0", "s3.timeout_s: Expected float > 0"),
        ("s3://bucket/two", "s3://", "use a folder, file:///folder, s3://bucket/prefix"),
        ("s3://bucket/two", "hdfs://x/two", "use a folder, file:///folder, s3://bucket/prefix"),
        ("s3://bucket/two", "dbfs:/b1", "'dbfs:/b1': a mounted path, .* use s3://bucket/prefix"),
        ("s3://bucket/two", "s3a://bucket/two", "'s3a://bucket/two': write s3://, which"),
        ("s3://bucket/two", "abfss:x", r"use a folder, .* \(a folder with a colon in its name: ./abfss:"),
        ("s3://bucket/two", "s3:/bucket/two", "'s3:/bucket/two': use a folder, "),
        ("s3://bucket/two", "file:/two", "'file:/two': write file:///absolute/folder"),
        ("s3://bucket/two", "C:/two", "'C:/two': drives of Windows are no roots"),
        ("s3://lake/flights/", "dbfs:/lake", "cluster.remote: 'dbfs:/lake': "),
        ('"one"', '"~/one"', "~ and .* are not expanded"),
        ('"one"', '"$HOME/one"', "~ and .* are not expanded"),
        ('"one"', '"file://one"', "write the folder's path"),
        ("[1]", "[1", "is not valid TOML: .*line 7"),
        pytest.param("[1]", "[" * 5000, "is not valid TOML: ", id="brackets"),
        pytest.param("[1]", "[1" + "0" * 4400 + "]", "is not valid TOML: ", id="digits"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    refuse(tmp_path, GOOD.replace(old, new), message)


def test_a_file_without_brokers_is_refused(tmp_path: Path) -> None:
    refuse(tmp_path, '[cluster]\nid = "c"\nvoters = [1]\n', "top level: brokers is missing")
    refuse(
        tmp_path, GOOD.split("[cluster]")[0] + GOOD[GOOD.index("[[brokers]]") :], "top level: cluster is missing"
    )


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidCallError, match=r"none\.toml cannot be read: No such file"):
        load_cluster_file(tmp_path / "none.toml")


def test_configs_are_not_set_in_the_file(tmp_path: Path) -> None:
    refuse(tmp_path, GOOD + "\n[configs]\n", "configs are not set here")


@pytest.mark.parametrize(
    "line", ["secret_key", "aws_secret_access_key", "access_key", "accesskey_id", "password", "Session_Token"]
)
def test_a_secret_is_refused_and_not_shown(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, GOOD + f'\n{line} = "hunter2"\n')
    with pytest.raises(InvalidCallError, match=f"{line} looks like a secret") as caught:
        load_cluster_file(path)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("https://s3", "https://me:hunter2@s3"),
        ("example.org", "example.org/?token=hunter2"),
        ('log_dir = "data"', 'log_dir = "s3://me:hunter2@bucket/b1"'),
        ('log_dir = "data"', 'log_dir = "s3a://me:hunter2@bucket/b1"'),
        ('log_dir = "data"', 'log_dir = "s3://bucket/b1?X-Amz-Signature=hunter2"'),
        ('log_dir = "data"', 'log_dir = "https://account.blob.example.org/b1?sig=hunter2"'),
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_shown(tmp_path: Path, good: str, bad: str) -> None:
    text = GOOD.replace('log_dir = "one"', 'log_dir = "data"')
    assert good in text
    with pytest.raises(InvalidCallError, match="holds credentials") as caught:
        load_cluster_file(write(tmp_path, text.replace(good, bad)))
    assert "hunter2" not in str(caught.value)
    with pytest.raises(UnsupportedStoreError, match="holds a secret") as unopened:
        open_store("s3://me:hunter2@bucket/b1")
    assert "hunter2" not in str(unopened.value)


@pytest.mark.parametrize("folder", ["data", "data/inside", "link/inside"])
def test_whoever_would_import_from_storage_is_told_so_before_anything_is_imported(
    tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root holds what its writers like, ``pandas.py`` too; Spark's workers import from the working folder."""
    (tmp_path / "data" / "inside").mkdir(parents=True)
    (tmp_path / "link").symlink_to("data")
    file = write(tmp_path, GOOD.replace('log_dir = "one"', 'log_dir = "data"'))
    with monkeypatch.context() as there:
        there.chdir(tmp_path / folder)
        with pytest.raises(
            EnvironmentUnusableError, match="which is storage of broker 1: anybody who may write there"
        ):
            load_cluster_file(file)
    with monkeypatch.context() as there:
        there.syspath_prepend(str(tmp_path / folder))
        with pytest.raises(EnvironmentUnusableError, match="take storage off sys"):
            load_cluster_file(file)
    monkeypatch.chdir(tmp_path)
    load_cluster_file(file)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("data", "data"),
        ("data", "./data/"),
        ("data", "x/../data"),
        ("data", "data/inside"),
        ("data/inside", "data"),
        ("data", "link"),
        ("data", "link/inside"),
        ("s3://bucket/x", "s3://bucket/x/"),
        ("s3://bucket", "s3://bucket/x"),
    ],
)
def test_two_brokers_on_one_folder_are_refused(tmp_path: Path, one: str, two: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    text = GOOD.replace("one", one).replace("s3://bucket/two", two).replace("s3://lake/flights/", "remote")
    refuse(tmp_path, text, "broker 1 and broker 2 share storage")


def test_a_remote_tier_inside_a_broker_is_refused(tmp_path: Path) -> None:
    refuse(tmp_path, GOOD.replace("s3://lake/flights/", "one/remote"), "broker 1 and the remote tier share")


def test_names_that_only_begin_alike_are_apart(tmp_path: Path) -> None:
    load_cluster_file(write(tmp_path, GOOD.replace("s3://bucket/two", "one-more")))
