"""A store of its own for each test of the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.command import StoreCommand


@pytest.fixture
def tq(tmp_path: Path) -> StoreCommand:
    """The command on a store that is not there yet."""
    return StoreCommand(tmp_path / "store")
