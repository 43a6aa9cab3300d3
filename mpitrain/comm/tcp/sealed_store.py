"""A torch.distributed store with signed values, which only processes with this launch's secret can insert."""

from __future__ import annotations

import datetime
import hashlib
import hmac
from typing import Any

import torch.distributed as dist

from mpitrain.errors import LaunchError

_KEPT: list[SealedStore] = []
_SEAL_BYTES = hashlib.sha256().digest_size


class SealedStore(dist.Store):
    """Store that adds a seal (HMAC-SHA256 of key and value) to each value of `store`; counters (`add`) have no seal.

    torch's stores have no authentication, and list their keys. Raises LaunchError for a value without a valid seal.
    """

    def __init__(self, store: dist.Store, secret: bytes) -> None:
        super().__init__()
        self._store, self._secret = store, secret
        # torch keeps only the C++ object of a store alive: keep the Python object, which later groups need.
        _KEPT.append(self)

    def set(self, key: str, value: Any) -> None:
        """See `dist.Store.set`."""
        content = value.encode() if isinstance(value, str) else bytes(value)
        self._store.set(key, (self._seal(key, content) + content).hex())

    def get(self, key: str) -> bytes:
        """See `dist.Store.get`."""
        return self._opened(key, self._store.get(key))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """See `dist.Store.multi_get`."""
        return [self._opened(key, sealed) for key, sealed in zip(keys, self._store.multi_get(keys), strict=True)]

    def add(self, key: str, amount: int) -> int:
        """See `dist.Store.add`."""
        return int(self._store.add(key, amount))

    def check(self, keys: list[str]) -> bool:
        """See `dist.Store.check`."""
        return bool(self._store.check(keys))

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        """See `dist.Store.wait`."""
        if timeout is None:
            self._store.wait(keys)
        else:
            self._store.wait(keys, timeout)

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """See `dist.Store.set_timeout`."""
        self._store.set_timeout(timeout)

    def delete_key(self, key: str) -> bool:
        """See `dist.Store.delete_key`."""
        return bool(self._store.delete_key(key))

    def num_keys(self) -> int:
        """See `dist.Store.num_keys`."""
        return int(self._store.num_keys())

    def _opened(self, key: str, sealed: bytes) -> bytes:
        try:
            content = bytes.fromhex(sealed.decode())
        except ValueError:
            content = b""
        seal, value = content[:_SEAL_BYTES], content[_SEAL_BYTES:]
        if not hmac.compare_digest(seal, self._seal(key, value)):
            raise LaunchError(
                "a process without this launch's secret has written to the ranks' rendezvous store: start again on "
                "another port, with the same MPITRAIN_SECRET on all ranks"
            )
        return value

    def _seal(self, key: str, value: bytes) -> bytes:
        named = key.encode()
        return hmac.digest(self._secret, len(named).to_bytes(8, "big") + named + value, "sha256")
