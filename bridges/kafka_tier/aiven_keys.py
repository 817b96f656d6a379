"""Encryption of Aiven's plugin: a data key per segment, encrypted with the user's RSA key. pycryptodome decrypts
it, because OpenSSL, and so the package cryptography, refuses OAEP with SHA3-512.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from stratalog.bridges.kafka_tier.layout import MissingKeyError
from stratalog.partitions.errors import CorruptionError, EnvironmentUnusableError, InvalidCallError

IV_BYTES, TAG_BYTES = 12, 16


def _crypto() -> tuple[Any, Any, Any, Any]:
    try:
        from Crypto.Cipher import AES, PKCS1_OAEP
        from Crypto.Hash import SHA3_512
        from Crypto.PublicKey import RSA
    except ModuleNotFoundError as error:
        raise EnvironmentUnusableError(
            "decrypting segments needs pycryptodome, which is not installed: pip install 'stratalog[kafka-tier]'"
        ) from error
    return AES, PKCS1_OAEP, SHA3_512, RSA


class KeyRing:
    """Private keys by their ids."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        """Raises: InvalidCallError for bytes that are not a private RSA key in PEM or DER."""
        self._keys = {}
        for name, data in keys.items():
            try:
                key = _crypto()[3].import_key(data)
            except (ValueError, IndexError, TypeError) as error:
                raise InvalidCallError(
                    f"key {name!r} is not an RSA key in PEM or DER without a passphrase"
                ) from error
            if not key.has_private():
                raise InvalidCallError(f"key {name!r} is a public key: decrypting data keys needs the private key")
            self._keys[name] = key

    def data_key(self, encrypted: str, named: str) -> bytes:
        """The data key of a segment, from ``KEY_ID:BASE64``.

        Raises: MissingKeyError; CorruptionError for a wrong key.
        """
        name, colon, text = encrypted.partition(":")
        if not colon:
            raise CorruptionError(f"{named}: its manifest has a data key without a key id")
        if name not in self._keys:
            known = ", ".join(map(repr, self._keys)) or "none"
            raise MissingKeyError(
                f"{named} is encrypted with key {name!r}, which is not among the given keys ({known}): pass its "
                "private key"
            )
        _, oaep, sha3, _ = _crypto()
        try:
            cipher = oaep.new(self._keys[name], hashAlgo=sha3)
            data_key: bytes = cipher.decrypt(base64.b64decode(text, validate=True))
        except (ValueError, binascii.Error, TypeError) as error:
            raise CorruptionError(f"{named}: key {name!r} does not decrypt its data key") from error
        if len(data_key) not in (16, 24, 32):
            raise CorruptionError(f"{named}: its data key has {len(data_key)} bytes, but AES needs 16, 24 or 32")
        return data_key


def decrypted(data: bytes, data_key: bytes, aad: bytes, what: str) -> bytes:
    """The plain bytes of IV, cipher text and tag. Raises: CorruptionError for bytes that have been changed."""
    aes = _crypto()[0]
    if len(data) < IV_BYTES + TAG_BYTES:
        raise CorruptionError(f"{what} is shorter than an IV and a tag")
    cipher = aes.new(data_key, aes.MODE_GCM, nonce=data[:IV_BYTES], mac_len=TAG_BYTES)
    cipher.update(aad)
    try:
        plain: bytes = cipher.decrypt_and_verify(data[IV_BYTES:-TAG_BYTES], data[-TAG_BYTES:])
    except ValueError as error:
        raise CorruptionError(f"{what} was changed after it was encrypted, or the key is wrong") from error
    return plain
