"""The suites of other projects' clients: the origin of their sources, the tests that apply, and the way to run
one.

A test applies if all that it needs from a broker is reads, look-ups of offsets and metadata, consumer groups, and
commits. Everything that a test writes as preparation goes through ``tests.strangers.writing``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.kafka_server import PINS
from stratalog.jobs.jars import class_path, fetch_jars, jar_folder
from stratalog.jobs.java import find_java

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "strangers"
_JOBS = 2


@dataclass(frozen=True, slots=True)
class Suite:
    name: str
    version: str
    registry: str
    fetch: Callable[[], None]
    """Puts the sources into ``CACHE`` and builds them. Raises: subprocess.CalledProcessError."""
    command: Callable[[str, int], tuple[list[str], Path, Mapping[str, str]]]
    """Returns, for a test and the port of the broker, the command, its folder, and its environment."""
    passed: Callable[[str, str], bool]
    """Returns, for a test and the output of its command, which ended with status 0, whether the test ran and was
    not skipped.
    """
    tests: tuple[str, ...]
    """The tests that apply."""
    most_s: float
    gaps: Mapping[str, str]
    """The tests that are known to fail, with the reasons."""
    left_out: Mapping[str, str]
    """Tests that do not apply, with the reason."""
    partitions: int = 4
    """The partitions of topics that are created by their first use."""


def _run(*words: str | Path, cwd: Path = ROOT) -> None:
    subprocess.run(words, cwd=cwd, check=True, stdout=subprocess.DEVNULL)


# ---------------------------------------------------------------------------------------- franz-go

_KGO = CACHE / "franz-go" / "pkg" / "kgo"
_KGO_TESTS = CACHE / "kgo.test"


def _fetch_franz_go() -> None:
    if _KGO_TESTS.exists():
        return
    module = f"github.com/twmb/franz-go@{FRANZ_GO.version}"
    told = subprocess.run(["go", "mod", "download", "-json", module], check=True, capture_output=True, text=True)
    found = re.search(r'"Dir": "([^"]+)"', told.stdout)
    assert found is not None, told.stdout
    shutil.copytree(found[1], CACHE / "franz-go", dirs_exist_ok=True, copy_function=shutil.copy)
    _run("chmod", "-R", "u+w", CACHE / "franz-go")
    _run("go", "test", "-c", "-o", _KGO_TESTS, ".", cwd=_KGO)


def _franz_go(test: str, port: int) -> tuple[list[str], Path, Mapping[str, str]]:
    environment = {
        "KGO_SEEDS": f"127.0.0.1:{port}",
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": "2000",
        "KGO_TEST_MAX_TOPIC_PARTS": "4",
        "KGO_LOG_LEVEL": "none",
    }
    return [str(_KGO_TESTS), "-test.v", "-test.run", f"^{test}$"], _KGO, environment


FRANZ_GO = Suite(
    "franz-go (kgo)",
    "v1.22.3",
    "the Go module proxy",
    _fetch_franz_go,
    _franz_go,
    lambda test, output: f"--- PASS: {test} " in output,
    (
        *("TestUnknownGroupOffsetFetchPinned", "TestPing", "TestIssue1034", "TestIssue325"),
        *("TestConsumeTopicRetrieval", "TestConsumeTopicRetrieval_Many", "TestConsumeRegex", "TestIssue337"),
        *("TestDirectPartitionPurge", "TestIssue434", "TestAddRemovePartitions", "TestPauseIssue489"),
        *("TestPauseIssueOct2023", "TestIssue523", "TestIssue648", "TestIssue810", "TestIssue865"),
        *("TestIssueFetchLargerThanBrokerMaxReadBytes", "TestGroupSimple", "TestHookPollStart"),
        *("TestIssue769", "TestIssue831"),
    ),
    90,
    {},
    {
        "TestGroupETL": "produces with transactions or idempotence while brokers rebalance: it judges a writer",
        "TestTxnEtl": "transactions of producers",
        "TestClient_Produce, TestClient_ProduceLargeMessages, TestIssueProduce...": "producers",
        "TestPooling, TestConsumeMaxDecompressBatchBytes": "need compressed batches",
        "Test848RegexBrokerResolves, TestGroupSimple/848": "the protocol of KIP-848, not served",
        "TestShareGroup, TestConsumeRegexShareSkipsInternal": "share groups (KIP-932), not served",
        "TestSCRAMAuth..., TestOAuthAuth": "SASL, not served",
        "136 others": "need no broker",
    },
)


# ------------------------------------------------------------------------------------ kafka-python

_KAFKA_PYTHON = CACHE / "kafka-python"
_PYTHON = CACHE / "venv" / "bin" / "python"
_SERVICE = '''"""What the sdist leaves out: a broker that runs already."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def stop(self):
        pass

    def dump_logs(self):
        pass


class SpawnedService:
    pass
'''


def _fetch_kafka_python() -> None:
    if (_KAFKA_PYTHON / "test" / "service.py").exists():
        return
    _run(sys.executable, "-m", "venv", CACHE / "venv")
    _run(_PYTHON, "-m", "pip", "install", "--quiet", "pytest", "pytest-mock", "pytest-timeout")
    name = f"kafka-python=={KAFKA_PYTHON.version}"
    _run(_PYTHON, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "-d", CACHE, name)
    _KAFKA_PYTHON.mkdir(exist_ok=True)
    packed = CACHE / f"kafka_python-{KAFKA_PYTHON.version}.tar.gz"
    _run("tar", "xzf", packed, "--strip-components=1", "-C", _KAFKA_PYTHON)
    (_KAFKA_PYTHON / "test" / "__init__.py").touch()  # otherwise Python's own package "test" comes first
    (_KAFKA_PYTHON / "test" / "service.py").write_text(_SERVICE)


def _kafka_python(test: str, port: int) -> tuple[list[str], Path, Mapping[str, str]]:
    environment = {
        "KAFKA_URI": f"kafka://127.0.0.1:{port}",
        "KAFKA_VERSION": "4.2.0",  # the version for which the client takes the endpoint
        "KAFKA_ROOT": str(CACHE),
        "PYTHONPATH": ".",
    }
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-q", "-rA", "--tb=short", "--show-capture=no"]
    return [str(_PYTHON), *words, f"test/integration/{test}"], _KAFKA_PYTHON, environment


_CONSUMER, _ADMIN = "test_consumer_integration.py::test_", "test_admin_integration.py::test_"
KAFKA_PYTHON = Suite(
    "kafka-python",
    "3.0.12",
    "PyPI (sdist)",
    _fetch_kafka_python,
    _kafka_python,
    lambda test, output: "1 passed" in output,
    (
        *(f"{_CONSUMER}{name}" for name in ("consumer", "consumer_topics", "paused", "kafka_version_infer")),
        *(f"{_CONSUMER}kafka_consumer{name}" for name in ("", "__blocking", "__offset_commit_resume")),
        *(f"{_CONSUMER}kafka_consumer_{name}" for name in ("max_bytes_simple", "max_bytes_one_msg")),
        *(f"{_CONSUMER}kafka_consumer_offsets_{name}" for name in ("for_time", "search_many_partitions")),
        f"{_CONSUMER}kafka_consumer_offsets_for_times_errors",
        f"{_CONSUMER}kafka_consumer_position_after_seek_to_end",
        *(f"{_CONSUMER}{name}" for name in ("group", "heartbeat_thread")),
        *(f"{_ADMIN}{name}" for name in ("describe_group_exists", "delete_groups", "delete_groups_with_errors")),
        f"{_ADMIN}describe_configs_invalid_broker_id_raises",
        *(f"{_ADMIN}describe_topic_partitions{name}" for name in ("", "_pagination")),
        f"{_ADMIN}list_partition_offsets",
    ),
    60,
    {
        f"{_ADMIN}describe_topic_partitions{name}": "DescribeTopicPartitions (KIP-966); Metadata has the same"
        for name in ("", "_pagination")
    },
    {
        "test_producer_integration.py": "producers",
        "test_sasl_integration.py": "SASL, not served",
        "test_ssl_integration.py": "starts a broker of its own with TLS",
        "test_kafka_consumer_unsupported_encoding": "needs compressed batches, which the endpoint never sends",
        "test_kafka_consumer_offsets_for_time_old": "skips itself: brokers before 0.10.1",
        "test_create_..., test_delete_records..., test_elect_leaders, test_alter_...": "change a cluster",
        "test_describe_configs_topic_...": "wants configs that a client may change; the rest of it passes",
        "test_describe_configs_broker_..., ..._mixed_...": "configs of a broker, of which the endpoint has none",
        "test_describe_log_dirs, test_describe_metadata_quorum, test_list_...": "describe a broker's own parts",
    },
)


# -------------------------------------------------------------------------------------- librdkafka

_RDKAFKA = CACHE / "librdkafka" / "package" / "deps" / "librdkafka"
_NPM = "confluentinc-kafka-javascript"


def _fetch_librdkafka() -> None:
    if (_RDKAFKA / "tests" / "test-runner").exists():
        return
    (CACHE / "librdkafka").mkdir(exist_ok=True)
    _run("npm", "pack", "--silent", "@confluentinc/kafka-javascript@1.10.1", cwd=CACHE)
    _run("tar", "xzf", CACHE / f"{_NPM}-1.10.1.tgz", "-C", CACHE / "librdkafka")
    _run("./configure", "--disable-zstd", "--disable-lz4-ext", "--disable-curl", "--disable-gssapi", cwd=_RDKAFKA)
    _run("make", f"-j{_JOBS}", "libs", cwd=_RDKAFKA)
    _run("make", "-C", "tests", f"-j{_JOBS}", "test-runner", cwd=_RDKAFKA)


def _librdkafka(test: str, port: int) -> tuple[list[str], Path, Mapping[str, str]]:
    configured = CACHE / "librdkafka.conf"
    configured.write_text(
        f"metadata.broker.list=127.0.0.1:{port}\ntest.topic.random=true\ntest.timeout.multiplier=4\n"
    )
    environment = {
        "RDKAFKA_TEST_CONF": str(configured),
        "LD_LIBRARY_PATH": "../src:../src-cpp",
        "TEST_KAFKA_VERSION": "2.4.0",  # the version from which its tests of cooperative groups run
        "TESTS": test,
    }
    return ["./test-runner", "-Q", "-p1"], _RDKAFKA / "tests", environment


LIBRDKAFKA = Suite(
    "librdkafka",
    "2.15.1",
    "npm (@confluentinc/kafka-javascript 1.10.1)",
    _fetch_librdkafka,
    _librdkafka,
    lambda test, output: re.search(rf"{test}_[^|]*\|\s+PASSED", output) is not None,
    (
        *("0012", "0013", "0014", "0015", "0018", "0019", "0022", "0026", "0029", "0030", "0031", "0033", "0034"),
        *("0036", "0040", "0041", "0042", "0044", "0045", "0050", "0051", "0054", "0056", "0057", "0059", "0060"),
        *("0061", "0063", "0067", "0069", "0070", "0073", "0083", "0085", "0089", "0091", "0093", "0099"),
        *("0112", "0113", "0116", "0118", "0122", "0127", "0130", "0132", "0137", "0140"),
    ),
    120,
    {},
    {
        "0002-0011, 0048, 0055, 0068, 0074-0076, 0086, 0088, 0090, 0094, 0110, 0114, 0125, 0144": "producers",
        "0098, 0103, 0105, 0129": "transactions of producers",
        "0081, 0109, 0111, 0115, 0119": "create and change topics, configs and ACLs",
        "0017, 0038, 0077, 0092": "compression, performance, compaction, message formats of writers",
        "0101, 0102, 0106, 0120": "fetch from followers of several brokers; static members, not served; long runs",
        "0028, 0082, 0107, 0153": "skip themselves",
        "0052, 0044's growth by script": "call the shell scripts of a Kafka installation",
        "0155-0190": "share groups (KIP-932), not served",
        "all others": "need no broker, a mock broker, SASL, OpenSSL or a proxy",
    },
)

# ------------------------------------------------------------------------------------------- Java

_CLASSES = CACHE / "java"
_TESTS_PINS = "consumer-tests.xml"
_OUTSIDE = Path(__file__).parent / "java" / "OutsideCluster.java"
_CONSUMER_TESTS = {
    "": """
        SimpleConsumption ClusterResourceListener Headers HeadersSerializerDeserializer AutoOffsetReset
        GroupConsumption GroupConsumptionWithTwoMembers PartitionsFor PartitionsForAutoCreate
        PartitionsForInvalidTopic Seek PartitionPauseAndResume Interceptors
        InterceptorsWithWrongKeyValue ConsumeMessagesWithCreateTime ConsumeMessagesWithLogAppendTime
        ListTopics PauseStateNotPreservedByRebalance PerPartitionLeadMetricsCleanUpWithSubscribe
        PerPartitionLagMetricsCleanUpWithSubscribe PerPartitionLeadMetricsCleanUpWithAssign
        PerPartitionLagMetricsCleanUpWithAssign PerPartitionLagMetricsWhenReadCommitted
        SeekThrowsIllegalStateIfPartitionsNotAssigned NullGroupIdNotSupportedIfCommitting EndOffsets
        FetchOffsetsForTime PositionRespectsTimeout PositionRespectsWakeup
        PositionWithErrorConnectionRespectsWakeup CloseLeavesGroupOnInterrupt
        OffsetRelatedWhenTimeoutZero StallBetweenPoll
    """,
    "Poll": """
        MaxPollRecords MaxPollIntervalMs MaxPollIntervalMsDelayInRevocation
        MaxPollIntervalMsDelayInAssignment MaxPollIntervalMsShorterThanPollTimeout
        PerPartitionLeadWithMaxPollRecords PerPartitionLagWithMaxPollRecords
        PollEventuallyReturnsRecordsWithZeroTimeout NoOffsetForPartitionExceptionOnPollZero
        RecoveryOnPollAfterDelayedRebalance
    """,
    "Commit": """
        AutoCommitOnClose AutoCommitOnCloseAfterWakeup CommitMetadata NoCommittedOffsets
        CommittedDeletedTopic AsyncCommit AutoCommitIntercept CommitSpecifiedOffsets
        AutoCommitOnRebalance SubscribeAndCommitSync PositionAndCommit
    """,
    "Callback": """
        RebalanceListenerAssignOnPartitionsAssigned RebalanceListenerAssignmentOnPartitionsAssigned
        RebalanceListenerBeginningOffsetsOnPartitionsAssigned RebalanceListenerAssignOnPartitionsRevoked
        RebalanceListenerAssignmentOnPartitionsRevoked
        RebalanceListenerBeginningOffsetsOnPartitionsRevoked
        GetPositionOfNewlyAssignedPartitionOnPartitionsAssignedCallback
        SeekPositionAndPauseNewlyAssignedPartitionOnPartitionsAssignedCallback
    """,
    "Subscription": """
        PatternSubscription SubsequentPatternSubscription PatternUnsubscription
        ExpandingTopicSubscriptions ShrinkingTopicSubscriptions UnsubscribeTopic
        SubscribeInvalidTopicCanUnsubscribe SubscribeInvalidTopicCanClose
    """,
    "Fetch": """
        FetchInvalidOffset FetchOutOfRangeOffsetResetConfigEarliest
        FetchOutOfRangeOffsetResetConfigLatest FetchOutOfRangeOffsetResetConfigByDuration
        FetchRecordLargerThanFetchMaxBytes FetchRecordLargerThanMaxPartitionFetchBytes
        FetchHonoursFetchSizeIfLargeRecordNotFirst
        FetchHonoursMaxPartitionFetchBytesIfLargeRecordNotFirst LowMaxFetchSizeForRequestAndPartition
    """,
    "Close": """
        CloseWithDefaultTakesAtLeastFetchMaxWaitMs CloseWithTimeoutIgnoresFetchMaxWaitMs
    """,
}
"""Names without ``testClassicConsumer``, keyed by class without its prefix ``PlaintextConsumer``."""
_OTHER_CONSUMER_TESTS = {
    "": """
        testClassicConsumingWithNullGroupId
    """,
    "Assign": """
        testClassicAssignAndCommitAsyncNotCommitted testClassicAssignAndCommitSyncNotCommitted
        testClassicAssignAndCommitSyncAllConsumed testClassicAssignAndConsume
        testClassicAssignAndConsumeSkippingPosition testClassicAssignAndFetchCommittedOffsets
        testClassicAssignAndConsumeFromCommittedOffsets
        testClassicAssignAndRetrievingCommittedOffsetsMultipleTimes testClassicPollAfterTopicDeleted
    """,
    "Poll": """
        runCloseClassicConsumerMultiConsumerSessionTimeoutTest
        runClassicConsumerMultiConsumerSessionTimeoutTest
    """,
    "Callback": """
        testOnPartitionsAssignedCalledWithNewPartitionsOnlyForClassicCooperative
        testOnPartitionsAssignedCalledWithNewPartitionsOnlyForClassicEager
    """,
}
"""Tests by their whole names."""


def _class_path() -> str:
    """The clients of the tests' own version come before those of the broker."""
    folder = jar_folder()
    places = [class_path(folder, PINS, "kafka-tiers"), class_path(folder, _TESTS_PINS)]
    return os.pathsep.join([str(_CLASSES), *places, class_path(folder, PINS, "kafka-broker")])


def _fetch_java() -> None:
    fetch_jars(jar_folder(), PINS)
    fetch_jars(jar_folder(), _TESTS_PINS)
    _CLASSES.mkdir(exist_ok=True)
    _run("javac", "-nowarn", "-cp", _class_path(), "-d", _CLASSES, _OUTSIDE)


def _java(test: str, port: int) -> tuple[list[str], Path, Mapping[str, str]]:
    java = str(find_java(os.environ).executable)
    words = ["-XX:TieredStopAtLevel=1", "-cp", _class_path(), "OutsideCluster"]
    return [java, *words, f"127.0.0.1:{port}", *test.split(".")], CACHE, {}


JAVA = Suite(
    "java (consumer)",
    "4.3.1",
    "Maven Central (kafka-clients-integration-tests, classifier test)",
    _fetch_java,
    _java,
    lambda test, output: f"PASSED {test}" in output,
    (
        *(
            f"PlaintextConsumer{of}Test.testClassicConsumer{n}"
            for of, t in _CONSUMER_TESTS.items()
            for n in t.split()
        ),
        *(f"PlaintextConsumer{of}Test.{n}" for of, t in _OTHER_CONSUMER_TESTS.items() for n in t.split()),
    ),
    90,
    {
        "PlaintextConsumerTest.testClassicConsumerFetchOffsetsForTime": "wants the leader epochs of offsets",
    },
    {
        "test...Async...": "the protocol of KIP-848, not served",
        "CoordinatorFailover, CloseOnBrokerShutdown, QuotaMetrics...": "stop a broker, or look into one",
        "StaticConsumerDetectsNewPartitionCreatedAfterRestart": "static members, not served",
        "ConsumerBounceTest, ConsumerIntegrationTest, ConsumerTopicCreationTest": "stop or configure brokers",
        "SaslPlainPlaintextConsumerTest, ShareConsumerTest, ShareConsumerRackAwareTest": "SASL, share groups",
    },
    partitions=1,
)

SUITES = (FRANZ_GO, KAFKA_PYTHON, LIBRDKAFKA, JAVA)


def environment_of(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of a test's process."""
    return {**os.environ, **given}
