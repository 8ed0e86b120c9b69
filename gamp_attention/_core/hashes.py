"""Hashes of contents that are identical in every process."""

import hashlib


def hash_bytes(*parts: bytes, size: int = 16) -> str:
    """Return 2 × size hexadecimal digits for the concatenation of the parts (BLAKE2b)."""
    digest = hashlib.blake2b(digest_size=size)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
