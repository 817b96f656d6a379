"""Errors about a file with a secret do not repeat a secret that was given instead of the file's name."""

from __future__ import annotations

import base64
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from stratalog.bridges.kafka_tier.layout import key_of_file
from stratalog.engine.config.key_source import key_file
from stratalog.jobs.http_server import read_token, tls_context
from stratalog.partitions.errors import StratalogError

TEXT = base64.b64encode(b"a secret of thirty-two bytes, or more").decode()
PEM = f"-----BEGIN PRIVATE KEY-----\n{TEXT * 8}\n-----END PRIVATE KEY-----\n"
READERS: dict[str, Callable[[str], object]] = {
    "the cluster key file": lambda path: key_file(path)(),
    "the token file": read_token,
    "key 'k'": partial(key_of_file, "k"),
    "the key of the certificate": lambda path: tls_context(__file__, path, None),
    "the certificate": lambda path: tls_context(path, None, None),
}


@pytest.mark.parametrize("what", READERS)
@pytest.mark.parametrize("secret", [TEXT, PEM, f"{TEXT}\0"], ids=["text", "pem", "nul"])
def test_a_secret_in_the_place_of_its_file_is_not_repeated(what: str, secret: str) -> None:
    with pytest.raises(StratalogError, match=f"^{what} cannot be read: .* not repeated") as refused:
        READERS[what](secret)
    assert TEXT not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("what", list(READERS)[:3])
def test_the_error_names_a_file_that_exists(what: str, tmp_path: Path) -> None:
    with pytest.raises(StratalogError, match=f"^{what}, '.*/{tmp_path.name}', cannot be read: Is a directory"):
        READERS[what](str(tmp_path))
