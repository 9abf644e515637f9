"""Keys and kubeconfig files, made with the standard library alone."""

from __future__ import annotations

import base64
import os
import secrets
from pathlib import Path

import yaml


def p256_private_key() -> str:
    """A new P-256 key as PEM (RFC 5915), for signing service account tokens.

    The public half is left out, as the RFC allows; Go computes it. So no cryptography package and no openssl is needed.
    """
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    secret = (secrets.randbelow(order - 1) + 1).to_bytes(32, "big")
    curve = bytes.fromhex("06082a8648ce3d030107")  # object identifier 1.2.840.10045.3.1.7
    body = b"\x02\x01\x01" + b"\x04\x20" + secret + b"\xa0" + bytes([len(curve)]) + curve
    encoded = base64.encodebytes(b"\x30" + bytes([len(body)]) + body).decode()
    return f"-----BEGIN EC PRIVATE KEY-----\n{encoded}-----END EC PRIVATE KEY-----\n"


def write_kubeconfig(path: Path, server: str, certificate: bytes, user: str, token: str) -> Path:
    """A kubeconfig with one context, readable by its owner only; the certificate is inside, so the file can be
    copied.
    """
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "practice",
                "cluster": {
                    "server": server,
                    "certificate-authority-data": base64.b64encode(certificate).decode(),
                },
            }
        ],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "practice", "context": {"cluster": "practice", "user": user, "namespace": "default"}}],
        "current-context": "practice",
    }
    scratch = path.with_name(path.name + ".new")
    scratch.touch(mode=0o600)
    scratch.write_text(yaml.safe_dump(content, sort_keys=False))
    os.replace(scratch, path)
    return path
