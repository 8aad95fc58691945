"""Backup of one tenant's file."""

from __future__ import annotations

from pathlib import Path

from tenantq import _schema
from tenantq._copies import check_sound, copy_beside, sync_file
from tenantq._sqlite import Database

__all__ = ["backup_file"]


def backup_file(database: Database, target: Path) -> None:
    """Copy all that is committed to `target`: under another name, checked, synced, renamed."""
    with copy_beside(target) as temporary:
        database.copy_to(temporary)
        check_sound(temporary, database.tenant)
        sync_file(temporary)
        _schema.remove_sidecars(target)  # those of an older file there would be replayed onto this one
        temporary.replace(target)
        _schema.sync_directory(target.parent)
