"""A certificate that signed itself, as a private CA and its server have it."""

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def self_signed(folder: Path) -> Path:
    """A file with a key and a certificate that it signed itself, for 127.0.0.1 and server.test."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mock")])
    now = datetime.now(UTC)
    names = [x509.IPAddress(IPv4Address("127.0.0.1")), x509.DNSName("server.test")]
    address = x509.SubjectAlternativeName(names)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now).not_valid_after(now + timedelta(days=1)).add_extension(address, False)
    pem, clear = serialization.Encoding.PEM, serialization.NoEncryption()
    path = folder / "mock.pem"
    path.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, clear)
        + made.sign(key, hashes.SHA256()).public_bytes(pem)
    )
    return path


def server_tls(certificate: Path) -> ssl.SSLContext:
    """The context of a server with this key and certificate."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    return tls
