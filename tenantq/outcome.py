"""How a handler ends other than by returning nothing: values, since only a failure is an exception."""

from __future__ import annotations

import msgspec

from tenantq.arguments import check_seconds

__all__ = ["DeadLetter", "Snooze"]


class Snooze(msgspec.Struct, frozen=True):
    """Returned by a handler: not now. The message comes again after `seconds`; the attempt is not counted."""

    seconds: float

    def __post_init__(self) -> None:
        check_seconds(self.seconds, "seconds")


class DeadLetter(msgspec.Struct, frozen=True):
    """Returned by a handler: never. The message goes to the dead letters, whatever attempts are left."""

    reason: str
