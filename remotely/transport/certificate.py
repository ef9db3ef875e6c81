"""The TLS certificate of this process, created in memory.

It proves nothing alone: the other side received its SHA-256 over CURVE, and accepts no other.
"""

import datetime as dt
import hashlib
import os
import ssl
from typing import NamedTuple

NAME = "remotely"
LIFETIME = dt.timedelta(days=3650)  # not checked: the certificate is used as long as the process


class Certificate(NamedTuple):
    """A certificate: a server context that uses it, and its fingerprint."""

    context: ssl.SSLContext
    fingerprint: bytes


def make() -> Certificate:
    """Create a certificate.  Its key never leaves the memory of this process."""
    # Slow to import, and few processes need one.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - LIFETIME)
        .not_valid_after(now + LIFETIME)
        .sign(key, hashes.SHA256())
    )
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    fd = os.memfd_create("certificate", os.MFD_CLOEXEC)  # `ssl` requires a file
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(certificate.public_bytes(serialization.Encoding.PEM))
            file.write(
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                )
            )
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
    der = certificate.public_bytes(serialization.Encoding.DER)
    return Certificate(context, hashlib.sha256(der).digest())


def is_of(socket: ssl.SSLSocket, fingerprint: bytes) -> bool:
    """Return whether the other side's certificate has this fingerprint."""
    shown = socket.getpeercert(binary_form=True)
    return shown is not None and hashlib.sha256(shown).digest() == fingerprint


def client_context() -> ssl.SSLContext:
    """Return a context whose connections must be checked with `is_of`."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # there is no authority; the fingerprint decides
    return context


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_TICKET  # a session is never resumed
    return context
