"""Digests of JSON values: the same value gives the same digest, in every process and version."""

import hashlib
import json

from interlock.contracts.payloads import Json


def digest(value: Json) -> str:
    """SHA-256 of the canonical JSON of a value that is plain JSON, in hex. Key order does not count."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
