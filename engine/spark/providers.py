"""Sends credential providers to executors: functions, pickled as Spark pickles functions.

Because Spark pickles functions by value, a function defined in a notebook may be a provider. The closure of the
function is sent too, so a provider should fetch secrets, not contain them.
"""

from __future__ import annotations

import copyreg
import pickle
from typing import Any

from pyspark import cloudpickle

from stratalog.partitions.store.credentials import GivenProvider


def _reduced(provider: GivenProvider) -> tuple[Any, ...]:
    return _arrived, (provider.id, cloudpickle.dumps(provider.function))  # type: ignore[no-untyped-call]


def _arrived(provider_id: str, function: bytes) -> GivenProvider:
    return GivenProvider(provider_id, pickle.loads(function))  # noqa: S301 - by Spark from this worker's driver


copyreg.pickle(GivenProvider, _reduced)
