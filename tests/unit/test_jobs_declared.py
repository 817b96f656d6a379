"""The command line of an operation follows from the declaration of its method."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from stratalog import Cluster, OffsetSpec, Report
from stratalog.bridges.kafka import Kafka
from stratalog.bridges.kafka_tier.options import KafkaTierOptions
from stratalog.bridges.kafka_tier.tier import KafkaTier
from stratalog.bridges.rights import Rights
from stratalog.engine.cluster.brokers import Brokers
from stratalog.engine.cluster.client import Client
from stratalog.engine.cluster.erasing import Erasing
from stratalog.engine.cluster.groups import Groups
from stratalog.engine.cluster.jobs import Jobs
from stratalog.engine.cluster.looks import Looks
from stratalog.engine.cluster.producer import Producer
from stratalog.engine.cluster.quorum import Quorum
from stratalog.engine.cluster.topics import Topics
from stratalog.engine.cluster.transactions import Transactions
from stratalog.jobs.declared import Parameter, add_parameter, call, declared
from stratalog.jobs.main import JOBS, job_of

DOORS: dict[str, Any] = {
    "__init__.Cluster": Cluster,
    "brokers.Brokers": Brokers,
    "client.Client": Client,
    "erasing.Erasing": Erasing,
    "groups.Groups": Groups,
    "jobs.Jobs": Jobs,
    "looks.Looks": Looks,
    "producer.Producer": Producer,
    "quorum.Quorum": Quorum,
    "topics.Topics": Topics,
    "transactions.Transactions": Transactions,
    "stratalog.bridges.kafka:Kafka": Kafka,
    "stratalog.bridges.kafka_tier.tier:KafkaTier": KafkaTier,
    "stratalog.bridges.rights:Rights": Rights,
}
CLASSES = {"stratalog.bridges.kafka_tier.options:KafkaTierOptions": KafkaTierOptions}
"""Arguments that several methods take as one object."""
_OF_ALL_JOBS = {
    "--cluster",
    "--cluster-key-file",
    "--credentials",
    "--json",
    "--master",
    "--runner",
    "--yes",
    "--sort",
}
_PRINTED = "how the job prints records or rows"
_ROUNDS = "rounds of one process: each is a call of the method"
_INPUT = "the input, which the method gets as rows or as a frame"
_STARTS = "the job makes a Committed of it, one of the places where the method can start"
_KAFKA = "Kafka's tools have an option for each kind of value that the parameter takes"
_READS = "the job only reads"
BY_HAND: dict[str, dict[str, str]] = {
    "produce": {
        **dict.fromkeys(("--input", "--format", "--key-separator", "--batch", "--linger"), _INPUT),
        "--dry-run": "the job converts the lines, and calls nothing",
    },
    "append": {
        **dict.fromkeys(("--input", "--format", "--option", "--schema", "--where", "--select"), _INPUT),
        **dict.fromkeys(("--stream", "--checkpoint"), "Spark's query, whose batches the method appends"),
    },
    "read": {
        "--group": _STARTS,
        **dict.fromkeys(("--where", "--output", "--format", "--option", "--mode"), "methods of the DataFrame"),
        **dict.fromkeys(("--limit", "--count", "--explain"), _PRINTED),
        "--dry-run": "the job plans the read, and reads nothing",
    },
    "tail": {"--group": _STARTS, **dict.fromkeys(("--max-messages", "--format", "--schema"), _PRINTED)},
    "offsets": {"--dry-run": _READS},
    "erase": dict.fromkeys(("--keys-file", "--key-format"), "the keys are read from a file"),
    "delete_records": {"--offset-json-file": "Kafka's file of several topics, a call of the method for each"},
    "health": {"--dry-run": _READS},
    "describe": {
        "--dry-run": _READS,
        **dict.fromkeys(("--wide", "--trouble", "--exclude-internal"), _PRINTED),
    },
    "metrics": dict.fromkeys(("--textfile", "--otlp"), "no method: prints what health has found"),
    "verify": {
        "--dry-run": "the method describe: the files that verify would read",
        "--discarded": "another method, discarded, of the same topics",
        "--erased": "another method, verify_erased, of a certificate",
        "--where": "an argument of verify_erased",
    },
    "maintain": {
        **dict.fromkeys(("--once", "--every"), _ROUNDS),
        **dict.fromkeys(("--metrics", "--otlp"), "no method: a server of metrics beside the rounds"),
        **dict.fromkeys(
            ("--page", "--page-token-file", "--page-tls-cert", "--page-tls-key", "--page-tls-client-ca"),
            "no method: a server of the page beside the rounds",
        ),
    },
    "tier": dict.fromkeys(("--once", "--every"), _ROUNDS),
    "snapshot": dict.fromkeys(("--once", "--every"), _ROUNDS),
    "topics list": dict.fromkeys(("--unavailable", "--under-min-isr", "--under-replicated"), _KAFKA),
    "topics alter-configs": dict.fromkeys(
        ("--cluster-wide", "--set", "--unset"), "parts of the mapping of changes"
    ),
    "groups reset-offsets": dict.fromkeys(
        ("--to-earliest", "--to-latest", "--to-offset", "--to-datetime"), _KAFKA
    ),
    "check_store": dict.fromkeys(
        (
            "url",
            "--endpoint-url",
            "--region",
            "--exclusive-multipart",
            "--plain-http",
            "--driver",
            "--file-system",
        ),
        "no method: needs no cluster",
    ),
    "format": {"--dry-run": "another method, plan_format"},
    "reassign": {
        **dict.fromkeys(("--plan", "--write-plan"), "files of the plan, which the method gets as a mapping"),
        **dict.fromkeys(("--status", "--cancel"), "other methods, reassignments and cancel_reassignments"),
    },
    "restore": {"--drill": "another method, drill"},
    "package": {"--to": "no method: needs no cluster"},
    "mirror": {"--end": "another method, end_mirror", **dict.fromkeys(("--once", "--every"), _ROUNDS)},
    "export": {"--group": _STARTS, **dict.fromkeys(("--once", "--every"), _ROUNDS)},
    "kafka_tier read": dict.fromkeys(("--limit", "--count", "--output"), _PRINTED),
    "report": {"--output": "where the job saves the page that the method returns"},
}
"""The options that no method declares, with the reasons, keyed by command."""


def _options(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, str, str | None]]:
    """Each command with its options, and the method that declares each."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, commanded in action.choices.items():
                yield from _options(commanded, f"{name} {command}")
        elif not isinstance(action, argparse._HelpAction):
            method = getattr(action, "declared", None)
            word = [action.dest, *action.option_strings][-1]
            # Options that all commands have.
            if word not in _OF_ALL_JOBS and (word != "--dry-run" or " " not in name):
                yield name, word, method


ALL = [one for job in JOBS for one in _options(job_of(job).parser(), job)]
OPERATIONS = {method for _, _, method in ALL if method is not None}


def test_each_option_comes_from_a_method_or_is_named_here_with_the_reason() -> None:
    found: dict[str, set[str]] = {}
    for command, word, method in ALL:
        if method is None:
            found.setdefault(command, set()).add(word)
    assert found == {command: set(words) for command, words in BY_HAND.items()}


@pytest.mark.parametrize("method", sorted(OPERATIONS))
def test_the_source_declares_what_the_method_takes(method: str) -> None:
    """The help explains each parameter of the command line, and no others."""
    door, _, name = method.rpartition(".")
    function = CLASSES.get(method) or getattr(DOORS[door], name)
    taken = {
        key: one
        for key, one in inspect.signature(function).parameters.items()
        if key not in ("self", "cls", "check")
    }
    found = declared(method)
    assert [one.name for one in found.parameters] == [*taken]
    for one in found.parameters:
        default = taken[one.name].default
        assert (one.default is None) == (default is inspect.Parameter.empty)
    args = (inspect.getdoc(function) or "").partition("Args:\n")[2].partition("\n\n")[0].splitlines()
    explained = {line.strip().split(":")[0] for line in args if line.startswith("    ") and line[4] != " "}
    assert explained <= {*taken}
    assert found.text


def test_each_option_has_a_text() -> None:
    for job in JOBS:
        parsers = [job_of(job).parser()]
        for parser in parsers:
            assert parser.description
            assert "stratalog.engine" not in parser.description
            for action in parser._actions:
                if isinstance(action, argparse._SubParsersAction):
                    parsers += action.choices.values()
                else:
                    assert action.help, (parser.prog, action.dest)


@pytest.mark.parametrize(
    ("parameter", "words", "value"),
    [
        ("dry_run: bool = False", ["--dry-run"], True),
        ("groups: bool = True", ["--no-groups"], False),
        ("budget_s: float | None = None", ["--budget", "5m"], 300.0),
        ("older_than_ms: int = 86400000", ["--older-than", "1h"], 3_600_000),
        ("throttle_bytes_per_s: float | None = None", ["--throttle", "1KiB"], 1024),
        ("memory_bytes: int = MEMORY_BYTES", ["--memory-bytes", "1MB"], 1_000_000),
        ("keep: Literal['remote', 'brokers'] | None = None", ["--keep", "remote"], "remote"),
        ("topics: TopicNames = None", ["--topics", "a,b"], ["a", "b"]),
        ("brokers: Sequence[int] | int", ["2,3"], [2, 3]),
        ("partitions: Sequence[int] | None = None", ["--partitions", "0"], [0]),
        ("leader: int | None = None", ["--leader", "0"], 0),
        ("group: str", ["g"], "g"),
        ("acks: Literal['all', 'leader'] = 'all'", ["--acks", "leader"], "leader"),
        ("rename: Mapping[str, str] | None = None", ["--rename", "a=b", "--rename", "c=d"], {"a": "b", "c": "d"}),
        ("by_duration: timedelta | None = None", ["--by-duration", "P1D"], timedelta(days=1)),
        (
            "isolation: Isolation | str = Isolation.READ_UNCOMMITTED",
            ["--isolation", "read_committed"],
            "read_committed",
        ),
        ("spec: Spec | datetime | str = OffsetSpec.LATEST", ["--spec", "earliest"], OffsetSpec.EARLIEST),
        ("start: Bound = None", ["--start", "0:1,2:3"], {0: 1, 2: 3}),
    ],
)
def test_a_parameter_is_written_by_its_type_and_its_unit(parameter: str, words: list[str], value: object) -> None:
    name, _, rest = parameter.partition(": ")
    annotation, _, default = rest.partition(" = ")
    one = Parameter(name, annotation, default or None, "text")
    parser = argparse.ArgumentParser()
    add_parameter(parser, one)
    assert vars(parser.parse_args(words)) == {name: value}


def test_a_call_passes_what_was_given_by_its_name_and_takes_the_report_with_its_failures() -> None:
    def act(topics: object = None, *, due: bool = False, older_than_ms: int = 5, check: bool = True) -> Report:
        return Report("act", [{"topics": str(topics), "due": due, "older_than_ms": older_than_ms, "check": check}])

    given = argparse.Namespace(topics=["a"], due=False, older_than_ms=None, json=True, cluster="c")
    (row,) = call(act, given, due=True).rows
    assert row == {"topics": "['a']", "due": True, "older_than_ms": 5, "check": False}


def test_a_pair_that_is_given_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_parameter(parser, Parameter("configs", "Mapping[str, str] | None", "None", "configs"))
    words = ["--configs", "a=1", "--configs", "b=x=y"]
    assert parser.parse_args(words).configs == {"a": "1", "b": "x=y"}
    with pytest.raises(SystemExit):
        parser.parse_args([*words, "--configs", "a=2"])
    assert "a is given twice" in capsys.readouterr().err
