"""How a tenant's verbs reach its file: opened when needed, opened anew after an eviction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tenantq import _schema
from tenantq._file import STEP, TenantFile
from tenantq._handle import Handle, HandleGone
from tenantq.clock import Clock
from tenantq.errors import FileReplaced, TenantGone

if TYPE_CHECKING:
    from tenantq.store import Store

__all__ = ["TenantAccess"]

T = TypeVar("T")
U = TypeVar("U")


class TenantAccess:
    """A tenant's identity and its way to its file."""

    def __init__(self, store: Store, tenant_id: str, *, create: bool = True) -> None:
        self.id = tenant_id
        self.store = store
        self.clock: Clock = store.clock
        self.path: Path = _schema.path_of(store.root, tenant_id)
        """The tenant's file. While it is open, touch it only through tenantq."""
        self._create = create
        self._handle: Handle | None = None

    def _open(self, *, create: bool) -> Handle | None:
        handle = self._handle
        if handle is None or handle.is_closed or self.store.is_closed:
            handle = self._handle = self.store.handle(self.id, self.path, create=create)
        return handle

    def _use(self, create: bool, action: Callable[[Handle, U], T], argument: U, default: Any) -> T:
        while True:
            handle = self._open(create=create and self._create)
            if handle is None:
                if create:
                    raise self.store.absence(self.id, self.path)
                return default  # type: ignore[no-any-return]
            try:
                return action(handle, argument)
            except HandleGone:
                self._handle = None
            except FileReplaced as exc:
                self._handle = None
                absence = None if self.path.exists() else self.store.absence(self.id, self.path)
                if isinstance(absence, TenantGone):
                    raise absence from exc
                raise

    def _write(self, operation: Callable[[TenantFile], T], *, create: bool = True, default: Any = None) -> T:
        return self._use(create, Handle.write, operation, default)

    def _write_existing(self, operation: Callable[[TenantFile], T], default: Any) -> T:
        # What acts on a message must not bring a deleted tenant back as an empty file.
        return self._write(operation, create=False, default=default)

    def _read(self, operation: Callable[[TenantFile], T], *, default: Any) -> T:
        return self._use(False, Handle.read, operation, default)

    def _read_one(self, operation: Callable[[TenantFile], T], *, default: Any) -> T:
        return self._use(False, Handle.read_one, operation, default)

    def _begin(self) -> Handle:
        def begin(handle: Handle, _argument: None) -> Handle:
            handle.begin()
            return handle

        return self._use(True, begin, None, None)

    def _in_steps(self, operation: Callable[[TenantFile], int]) -> int:
        total = 0
        while True:
            count = self._write(operation, create=False, default=0)
            total += count
            if count < STEP:
                return total
