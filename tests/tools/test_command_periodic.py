"""`tenantq periodic`: list, add and remove, of one tenant and for all."""

from __future__ import annotations

import sys

import pytest

from tenantq import _cron
from tests.tools.command import StoreCommand

ADD = ("periodic", "add", "nightly", "0 3 * * *", "report", '{"kind": 1}')


@pytest.mark.parametrize("of", [("--tenant", "acme"), ("--all",)], ids=["a tenant", "all"])
def test_what_is_added_is_listed_and_removed(tq: StoreCommand, of: tuple[str, ...]) -> None:
    tq.enqueue("acme", "report", 1)
    assert "There are no periodic messages." in tq("periodic", "list", *of).stderr
    added = tq.json(*ADD, *of, "--timezone", "Asia/Tokyo", "--missed", "skip", "--key", "k")
    assert (added["payload"], added["missed"], added["key"]) == ({"kind": 1}, "skip", "k")
    assert added["next_at"].endswith("T18:00:00+00:00")
    assert tq.json("periodic", "list", *of) == added
    assert "Asia/Tokyo" in tq("periodic", "list", *of).stdout
    assert "fires next at" in tq(*ADD, *of).stdout
    assert tq.json("periodic", "remove", "nightly", *of)["removed"] is True
    assert "is not there" in tq("periodic", "remove", "nightly", *of, status=1).stdout


@pytest.mark.parametrize("of", [(), ("--tenant", "acme", "--all")], ids=["none", "both"])
def test_it_is_of_one_tenant_or_for_all(tq: StoreCommand, of: tuple[str, ...]) -> None:
    tq.enqueue("acme", "report", 1)
    assert "give one of --tenant T and --all" in tq(*ADD, *of, status=2).stderr


def test_wrong_usage_says_what_is_wrong(tq: StoreCommand) -> None:
    tq.enqueue("acme", "report", 1)
    for arguments, said in (
        (("x", "0 25 * * *", "report", "1"), "Bad hour"),
        (("x", "0 3 * * *", "report", "{"), "payload"),
        (("x", "0 3 * * *", "report", "1", "--timezone", "Mars/X"), "Mars/X"),
    ):
        assert said in tq("periodic", "add", *arguments, "--tenant", "acme", status=2).stderr
    assert "no tenant 'nobody'" in tq(*ADD, "--tenant", "nobody", status=1).stderr


def test_a_missing_extra_says_what_to_install(tq: StoreCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    tq.enqueue("acme", "report", 1)
    monkeypatch.setitem(sys.modules, "cronsim", None)
    _cron.is_installed.cache_clear()
    try:
        assert "pip install 'tenantq[cron]'" in tq(*ADD, "--all", status=2).stderr
    finally:
        _cron.is_installed.cache_clear()
