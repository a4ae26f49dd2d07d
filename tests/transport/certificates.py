"""Certificates for loopback, made for one test."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PEM = serialization.Encoding.PEM


class Authority:
    """Signs certificates; ``path`` is its own."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._signed(self.name, self.key.public_key(), -1, 24, usage=None)
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(made.public_bytes(PEM))

    def issue(
        self, name: str, *, begins_h: float = -1, ends_h: float = 1, client: bool = False
    ) -> tuple[Path, Path]:
        """A certificate for 127.0.0.1 and its key; hours from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._signed(subject, key.public_key(), begins_h, ends_h, usage=usage)
        certificate, key_file = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(made.public_bytes(PEM))
        pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        key_file.write_bytes(key.private_bytes(PEM, pkcs8, plain))
        return certificate, key_file

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        begins_h: float,
        ends_h: float,
        usage: x509.ObjectIdentifier | None,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        authority = self.key.public_key()
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(hours=begins_h))
            .not_valid_after(now + timedelta(hours=ends_h))
            .add_extension(x509.BasicConstraints(ca=usage is None, path_length=None), critical=True)
            .add_extension(key_usage(signs_others=usage is None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority), critical=False
            )
        )
        if usage is not None:
            address = x509.IPAddress(ip_address("127.0.0.1"))
            made = made.add_extension(
                x509.SubjectAlternativeName([address, x509.DNSName("localhost")]), critical=False
            ).add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        return made.sign(self.key, hashes.SHA256())


def key_usage(*, signs_others: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_others,
        crl_sign=signs_others,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
