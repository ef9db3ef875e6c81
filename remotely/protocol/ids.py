"""Ids that only the holder of a key can use."""

import hashlib

import msgspec

_encode = msgspec.msgpack.Encoder().encode


def bound_id(role: str, key: bytes, nonce: str) -> str:
    """Derive the id that the holder of a key and a nonce has in this role."""
    data = _encode((role, key, nonce))
    return hashlib.blake2b(data, digest_size=16, person=b"remotely id").hexdigest()
