"""Time that jumps: nothing is lost, and nothing runs twice within its lease."""

from __future__ import annotations

from pathlib import Path

import pytest

import tenantq
from tenantq.testing import ManualClock

HOUR = 3600.0


class OtherBoot(ManualClock):
    """The clock of the same host after a boot: time since it begins anew."""

    def boottime_ns(self) -> int:
        return self._monotonic_ns + 1

    def boot_id(self) -> str:
        return "another boot"


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_jump_of_the_wall_clock_ends_no_lease(acme: tenantq.Tenant, clock: ManualClock, jump: float) -> None:
    acme.enqueue("mail", 1)
    (held,) = acme.claim("mail", lease=60)
    clock.jump(jump)
    assert acme.reap() == 0
    assert acme.claim("mail") == []
    assert acme.stats().claimed == 1
    clock.advance(59)
    assert acme.claim("mail") == []
    clock.advance(1)
    (again,) = acme.claim("mail")
    assert (again.id, again.attempts) == (held.id, 2)


def test_a_lease_is_extended_by_time_that_does_not_jump(acme: tenantq.Tenant, clock: ManualClock) -> None:
    acme.enqueue("mail", 1)
    (held,) = acme.claim("mail", lease=60)
    clock.jump(-HOUR)
    held.extend(60)
    clock.jump(2 * HOUR)
    clock.advance(59)
    assert acme.claim("mail") == []
    assert acme.next_due() == 1.0
    clock.advance(1)
    assert len(acme.claim("mail")) == 1


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_what_is_enqueued_before_a_jump_is_claimable_behind_it(
    acme: tenantq.Tenant, clock: ManualClock, jump: float
) -> None:
    acme.enqueue("mail", 1)
    clock.jump(jump)
    acme.enqueue("mail", 2)
    assert {message.payload for message in acme.claim("mail", 9)} == {1, 2}


def test_a_boot_ends_the_leases_that_were_held_before_it(tmp_path: Path, clock: ManualClock) -> None:
    with tenantq.open(tmp_path, clock=clock) as store:
        store.tenant("acme").enqueue_many("mail", [1, 2])
        store.tenant("acme").claim("mail", lease=24 * HOUR)
    with tenantq.open(tmp_path, clock=OtherBoot()) as store:
        acme = store.tenant("acme")
        messages = acme.claim("mail", 9)
        assert sorted((message.payload, message.attempts) for message in messages) == [(1, 2), (2, 1)]
        # Those of this boot are nobody else's, though the file was opened before they were held.
        with tenantq.open(tmp_path, clock=OtherBoot()) as other:
            assert other.tenant("acme").claim("mail") == []
        acme.ack(*messages)
    assert tenantq.verify(acme.path).ok


def test_a_lease_of_this_boot_survives_that_its_file_came_from_another(tmp_path: Path, clock: ManualClock) -> None:
    with tenantq.open(tmp_path, clock=clock) as store:
        store.tenant("acme").enqueue("mail", 1)
    with tenantq.open(tmp_path, clock=OtherBoot()) as store, tenantq.open(tmp_path, clock=OtherBoot()) as other:
        assert other.tenant("acme").claim("mail", 0 + 1, lease=60) != []
        assert store.tenant("acme").claim("mail") == []
