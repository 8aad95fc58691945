"""What can go wrong with one tenant while many are forwarded, and what is then done with that one."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from tenantq.errors import FileReplaced, TenantqError, UnknownTenant
from tenantq.outbox import OutboxPosition
from tenantq_bridge.errors import PostgresUnavailable, TenantQuarantined
from tenantq_bridge.known import KnownTenants
from tenantq_bridge.line import TenantLine
from tenantq_bridge.parcel import OtherHistory
from tenantq_bridge.states import ForwardingState, ForwardingStates

__all__ = ["Troubles"]

logger = logging.getLogger("tenantq.bridge")


class Troubles:
    """Deals with what befalls single tenants, so that the others' events go on."""

    def __init__(self, known: KnownTenants, line: TenantLine, states: ForwardingStates) -> None:
        self._known = known
        self._line = line
        self._states = states
        self.quarantines = 0
        """Tenants that were put into quarantine."""

    @contextlib.contextmanager
    def sparing_others(
        self, tenant: str, state: ForwardingState | None = None, position: OutboxPosition | None = None
    ) -> Iterator[None]:
        """Deal with what is one tenant's trouble; an outage of Postgres is everyone's and goes on."""
        try:
            yield
        except UnknownTenant:
            self._known.forget(tenant)
            self._line.forget(tenant)
        except FileReplaced:
            self._known.forget(tenant)  # with the way to the file that was
            self._line.add([tenant])
        except OtherHistory:
            assert state is not None
            assert position is not None
            logger.warning("tenant %r has another history than Postgres: a new epoch", tenant)
            self._known.forget(tenant)
            self._states.begin_epoch(state, position.file_id)
            self._line.add([tenant])
        except TenantQuarantined as exc:
            assert state is not None
            self._known.forget(tenant)
            if self._states.quarantine(state, exc.message):
                self.quarantines += 1
                logger.error("quarantined: %s", exc)
        except PostgresUnavailable:
            raise
        except TenantqError as exc:
            self._known.forget(tenant)
            pause = self._line.leave(tenant, exc)
            logger.warning("tenant %r is left for %.0f s: %s", tenant, pause, exc)
        else:
            self._line.forget(tenant)
