"""``cluster.toml``: its content, and one clear error for every fault in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.engine.config.cluster_file import BrokerEntry, load_cluster_file
from stratalog.partitions.errors import EnvironmentUnusableError, InvalidCallError
from stratalog.partitions.store.credentials import CredentialSource, GivenProvider, NamedProvider
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
    on_s3 = StoreOptions(endpoint_url="https://s3.example.org", region="us-east-1", timeout_s=5)
    assert (file.cluster_id, file.remote, file.voters) == ("c", "s3://lake/flights", (1,))
    assert file.brokers == (
        BrokerEntry(1, "a", f"file://{tmp_path}/one"),
        BrokerEntry(2, None, "s3://bucket/two", on_s3),
    )
    assert file.remote_storage == on_s3
    assert file.warnings == ()
    assert file.broker(2) == file.brokers[1]
    assert file.broker(3) is None


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False)])
def test_a_server_may_be_declared_to_complete_uploads_exclusively(tmp_path: Path, text: str, value: bool) -> None:
    file = load_cluster_file(write(tmp_path, GOOD + f"exclusive_multipart = {text}\n"))
    assert file.remote_storage.exclusive_multipart is value


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
        ('id = "c"', 'id = "c"\nxyz = 1', "cluster: unknown key 'xyz'; the keys are id, "),
        ("id = 2", "id = 2\nxyz = 1", r"brokers\[1\]: unknown key 'xyz'; the keys are id, log_dir"),
        ('id = "c"', "", "cluster: id is missing: add a name for the cluster"),
        ('id = "c"', 'id = ""', "cluster.id: Expected str of length >= 1"),
        ('id = "c"', 'id = "a b"', "cluster.id: 'a b': use 1 to 64 of"),
        ('id = "c"', "id = 7", "cluster.id: Expected str, got int"),
        ("id = 2", "id = 1", r"brokers\[1\].id: 1 is used by two brokers: give each its own id"),
        ("id = 2", "id = -2", r"brokers\[1\].id: Expected int >= 0"),
        ("id = 2", 'id = "2"', r"brokers\[1\].id: Expected int, got str"),
        ("id = 2", "id = true", r"brokers\[1\].id: Expected int, got bool"),
        ('log_dir = "one"', "", r"brokers\[0\]: log_dir is missing: add the broker's folder or bucket"),
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
        ("s3://bucket/two", "dbfs:/b1", r"\(dbfs:...\) is refused.*: a mounted path, .* use s3://bucket/prefix"),
        ("s3://bucket/two", "abfss:x", r"use a folder, .* \(a folder with a colon in its name: ./name:"),
        ("s3://bucket/two", "s3:/bucket/two", r"brokers\[1\].log_dir: this address \(s3:...\) .*: use a folder, "),
        ("s3://bucket/two", "file:/two", r"\(file:...\) is refused.*: write file:///absolute/folder"),
        ("s3://bucket/two", "C:/two", "this address is refused.*: a Windows drive cannot be a root"),
        ("s3://lake/flights/", "dbfs:/lake", r"cluster.remote: this address \(dbfs:...\) is refused"),
        ('"one"', '"~/one"', "~ and .* are not expanded"),
        ('"one"', '"$HOME/one"', "~ and .* are not expanded"),
        ('"one"', '"file://one"', "write file:///absolute/folder"),
        ("[1]", "[1", "is not valid TOML: .*line 7"),
        pytest.param("[1]", "[" * 5000, "is not valid TOML: ", id="brackets"),
        pytest.param("[1]", "[1" + "0" * 4400 + "]", "is not valid TOML: ", id="digits"),
    ],
)
def test_an_error_is_named_with_its_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    refuse(tmp_path, GOOD.replace(old, new), message)


def test_a_file_without_brokers_is_refused(tmp_path: Path) -> None:
    alone = '[cluster]\nid = "c"\nvoters = [1]\n'
    refuse(tmp_path, alone, r"top level: brokers is missing: add a \[\[brokers\]\] table")
    brokers = GOOD.split("[cluster]")[0] + GOOD[GOOD.index("[[brokers]]") :]
    refuse(tmp_path, brokers, r"top level: cluster is missing: add a \[cluster\] table")


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidCallError, match=r"none\.toml cannot be read: No such file"):
        load_cluster_file(tmp_path / "none.toml")


def test_configs_are_not_set_in_the_file(tmp_path: Path) -> None:
    refuse(tmp_path, GOOD + "\n[configs]\n", "configs are dynamic")


@pytest.mark.parametrize(
    "line", ["secret_key", "aws_secret_access_key", "access_key", "accesskey_id", "password", "Session_Token"]
)
def test_a_secret_is_refused_and_not_shown(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, GOOD + f'\n{line} = "hunter2"\n')
    with pytest.raises(InvalidCallError, match=f"{line} looks like a secret") as caught:
        load_cluster_file(path)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("folder", ["data", "data/inside", "link/inside"])
def test_an_import_from_storage_is_refused_before_anything_is_imported(
    tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root may contain any files of its writers, ``pandas.py`` too; Spark's workers import from the working
    folder."""
    (tmp_path / "data" / "inside").mkdir(parents=True)
    (tmp_path / "link").symlink_to("data")
    file = write(tmp_path, GOOD.replace('log_dir = "one"', 'log_dir = "data"'))
    with monkeypatch.context() as there:
        there.chdir(tmp_path / folder)
        with pytest.raises(
            EnvironmentUnusableError, match="which is storage of broker 1: anyone who can write there"
        ):
            load_cluster_file(file)
    with monkeypatch.context() as there:
        there.syspath_prepend(str(tmp_path / folder))
        with pytest.raises(EnvironmentUnusableError, match="remove the storage from sys"):
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


def test_names_with_only_a_common_beginning_are_distinguished(tmp_path: Path) -> None:
    load_cluster_file(write(tmp_path, GOOD.replace("s3://bucket/two", "one-more")))


class TestStorage:
    """The connection of each root: its own table, or that of its kind."""

    def read(self, folder: Path, own: str = "", common: str = "", root: str = "s3://bucket/two") -> StoreOptions:
        text = GOOD.replace("s3://bucket/two", root).replace("[s3]", f"[brokers.storage]\n{own}\n[s3]")
        file = load_cluster_file(write(folder, f"{text}\n{common}"))
        assert file.remote_storage == StoreOptions("https://s3.example.org", "us-east-1", timeout_s=5)
        return file.brokers[1].storage

    def test_a_root_has_the_options_of_its_own_table_and_the_common_rest(self, tmp_path: Path) -> None:
        address = "https://eu.example.org"
        own = f'endpoint_url = "{address}"\nregion = "eu"\nprofile = "eu"\nkms_key_id = "arn:1"\nretries = 2'
        wanted = StoreOptions(address, region="eu", profile="eu", kms_key_id="arn:1", timeout_s=5, retries=2)
        assert self.read(tmp_path, own) == wanted

    def test_each_kind_of_storage_has_a_table_of_its_own(self, tmp_path: Path) -> None:
        common = '[azure]\naccount = "lake"\ntimeout_s = 7\n[gcs]\nretries = 3\n'
        azure = self.read(tmp_path, common=common, root="az://c/two")
        server = "https://lake.blob.core.windows.net"
        assert azure == StoreOptions(server, account="lake", timeout_s=7)
        assert self.read(tmp_path, common=common, root="gs://b/two") == StoreOptions(retries=3)
        named = self.read(tmp_path, own="timeout_s = 9", root="abfss://c@lake.dfs.core.windows.net/two")
        assert named == StoreOptions(server, account="lake", timeout_s=9)

    def test_a_root_of_its_own_credentials_has_no_others(self, tmp_path: Path) -> None:
        text = GOOD.replace("[s3]", '[brokers.storage]\nprofile = "eu"\n[s3]\ncredentials = "a.b:c"')
        text = text.replace("s3://lake/flights/", "s3a://lake/flights")
        file = load_cluster_file(write(tmp_path, text))
        assert (file.brokers[1].storage.profile, file.brokers[1].storage.credentials) == ("eu", None)
        remote = CredentialSource(NamedProvider("a.b:c"), "s3://lake/flights")
        assert (file.remote, file.remote_storage.credentials) == ("s3://lake/flights", remote)
        assert file.brokers[0].storage == StoreOptions()

    def test_a_provider_of_the_caller_goes_before_that_of_the_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write(tmp_path, GOOD.replace("[s3]", '[s3]\ncredentials = "a.b:c"'))
        monkeypatch.setenv("STRATALOG_CREDENTIALS", "env:f")
        by_environment = load_cluster_file(path).brokers[1].storage.credentials
        assert by_environment == CredentialSource(NamedProvider("env:f"), "s3://bucket/two")
        by_name = load_cluster_file(path, "given:f").remote_storage.credentials
        assert by_name == CredentialSource(NamedProvider("given:f"), "s3://lake/flights")
        given = load_cluster_file(path, lambda _: {}).remote_storage.credentials
        assert given is not None
        assert isinstance(given.provider, GivenProvider)

    @pytest.mark.parametrize(
        ("root", "line", "message"),
        [
            (
                "s3://bucket/two",
                "regoin = 1",
                r"brokers\[1\].storage: unknown key 'regoin'; did you mean 'region'",
            ),
            ("s3://bucket/two", 'account = "a"', r"brokers\[1\].storage: unknown key 'account'"),
            ("gs://bucket/two", 'profile = "a"', r"brokers\[1\].storage: unknown key 'profile'"),
            ("s3://bucket/two", "region = 1", r"brokers\[1\].storage.region: Expected str"),
            ("two", 'region = "a"', r"brokers\[1\].storage: a folder has no storage options"),
            ("abfss://c@a.dfs.core.windows.net/x", 'account = "b"', "the address already names the account"),
            ("s3://bucket/two", 'secret_key = "hunter2"', "secret_key looks like a secret"),
            ("s3://bucket/two", 'credentials = "hunter2"', "credentials must be the name of a function"),
            ("s3://bucket/two", 'endpoint_url = "https://me:hunter2@s3"', "endpoint_url: this address .*refused"),
            ("s3://lake/two", 'endpoint_url = "https://b.example.org"', "s3://lake exists on two servers"),
        ],
    )
    def test_an_error_is_named_and_no_secret_is_shown(
        self, tmp_path: Path, root: str, line: str, message: str
    ) -> None:
        text = GOOD.replace("s3://bucket/two", root).replace("[s3]", f"[brokers.storage]\n{line}\n[s3]")
        with pytest.raises(InvalidCallError, match=message) as caught:
            load_cluster_file(write(tmp_path, text))
        assert "hunter2" not in str(caught.value)

    def test_options_of_a_remote_that_there_is_not_are_refused(self, tmp_path: Path) -> None:
        text = GOOD.replace('remote = "s3://lake/flights/"', "") + '[remote.storage]\nregion = "a"\n'
        refuse(tmp_path, text, "remote.storage: this table needs cluster.remote, which is missing")


class TestAddresses:
    """The address of the file itself."""

    @pytest.mark.parametrize(
        ("address", "message"),
        [
            ("hdfs://x/cluster.toml", "the cluster file: this address .*: use a folder, "),
            ("dbfs:/cluster.toml", "use s3://bucket/prefix"),
            ("s3://bucket", "name the file, as in s3://bucket/cluster.toml"),
            ("s3://bucket/folder/", "name the file, as in"),
        ],
    )
    def test_an_address_that_cannot_be_read_is_refused_with_what_to_write(
        self, address: str, message: str
    ) -> None:
        with pytest.raises(InvalidCallError, match=message):
            load_cluster_file(address)

    def test_one_of_this_machine_may_be_an_address(self, tmp_path: Path) -> None:
        path = write(tmp_path, GOOD)
        assert load_cluster_file(f"file://{path}").path == str(path)
