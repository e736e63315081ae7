"""Which cryptography is used? X25519, HKDF with SHA-256, ChaCha20 and its Poly1305, as the `cryptography` package has
them."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.store.disk import canonical

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

KEY = 32  # bytes of every key
WORD = np.dtype("<u4")  # sums are modulo 2^32


class Unreadable(ValueError):
    """A ciphertext that was changed, or was meant for somebody else or for another round."""


def needs_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise FedpointError(
            "secure = true needs the package cryptography: pip install 'fedpoint[federation]'"
        ) from None


def digest(*parts: object) -> bytes:
    """SHA-256 of plain values, written so that no two of them are written alike."""
    return hashlib.sha256(canonical([part.hex() if isinstance(part, bytes) else part for part in parts])).digest()


class Secret:
    """A private key. What it has in common with a public key is computed once, and forgotten with it."""

    def __init__(self, secret: bytes):
        self.secret = secret
        self._common: dict[bytes, bytes] = {}

    @cached_property
    def _key(self) -> X25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        return X25519PrivateKey.from_private_bytes(self.secret)

    @cached_property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def common(self, public: bytes) -> bytes:
        """What only this key and that of `public` have; ValueError where nothing but zero comes of it."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        if public not in self._common:
            self._common[public] = self._key.exchange(X25519PublicKey.from_public_bytes(public))
        return self._common[public]

    def agreed(self, public: bytes, purpose: bytes) -> bytes:
        """The key that two parties agree on for one purpose: each has its own secret and the other's public key."""
        return derived(self.common(public), purpose)


def derived(secret: bytes, purpose: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), KEY, salt=None, info=purpose).derive(secret)


def stream(key: bytes, size: int) -> bytes:
    """So many bytes that nobody can tell from random ones who has not the key. A key is used for one stream."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    return Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(size))


def words(key: bytes, count: int) -> np.ndarray:
    """A mask: uniform on the integers modulo 2^32."""
    return np.frombuffer(stream(key, count * WORD.itemsize), WORD)


def sealed(key: bytes, text: bytes, about: bytes) -> bytes:
    """Encrypted and authenticated, `about` too. A key seals one text: the nonce is zero."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key).encrypt(bytes(12), text, about)


def opened(key: bytes, ciphertext: bytes, about: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), ciphertext, about)
    except InvalidTag:
        raise Unreadable("changed, or meant for somebody else") from None
