"""Ids that only the holder of a key can have."""

import hashlib

import msgspec

_encode = msgspec.msgpack.Encoder().encode


def bound_id(role: str, key: bytes, nonce: str) -> str:
    """Return the id that the holder of a key and a nonce has in this role."""
    told = _encode((role, key, nonce))
    return hashlib.blake2b(told, digest_size=16, person=b"remotely id").hexdigest()
