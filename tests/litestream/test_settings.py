"""The settings: what is taken, what is refused and why, and what Litestream is told."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tenantq_tools.litestream import NotConfigured, Settings
from tenantq_tools.litestream.errors import BudgetTooSmall, InvalidReplica, replica_error
from tenantq_tools.litestream.settings import check_replica, config_text


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("backups/tenants", "begins with none of"),
        ("ftp://host/x", "begins with none of"),
        ("file://backup/tenants", "no absolute path"),
        ("file:///back up", "no absolute path"),
        ("s3:///tenants", "names no bucket"),
        ("s3://bucket/tenants/é", "does not find again"),
        ("s3://key:hush@bucket/tenants", "has a secret"),
        ("s3://bucket/tenants?secret-access-key=hush", "has a secret"),
        ("s3://[bucket", "is no URL"),
    ],
)
def test_a_replica_that_cannot_be_is_refused_with_the_reason_and_no_secret(url: str, said: str) -> None:
    with pytest.raises(InvalidReplica, match=said) as caught:
        check_replica(url)
    assert "hush" not in caught.value.message


def test_each_tenant_has_a_directory_below_the_replica_named_as_its_file(tmp_path: Path) -> None:
    path = tmp_path / "8b" / "acme.db"
    assert Settings(replica="file:///backup/").url_of(path) == "file:///backup/8b/acme.db"
    assert Settings(replica="s3://b?region=x").url_of(path) == "s3://b/8b/acme.db?region=x"
    assert Settings(replica="s3://b/t?region=x&endpoint=http://h:1").url_of(path) == (
        "s3://b/t/8b/acme.db?region=x&endpoint=http://h:1"
    )


def test_settings_are_kept_in_the_store_and_changed_one_by_one(tmp_path: Path) -> None:
    Settings.load(tmp_path, replica="file:///backup", hot=7).keep(tmp_path)
    Settings.load(tmp_path, hot=None, idle=5.0).keep(tmp_path)
    kept = Settings.load(tmp_path)
    assert (kept.replica, kept.hot, kept.idle) == ("file:///backup", 7, 5.0)
    assert [(file.stat().st_mode & 0o777) for file in (tmp_path / ".litestream").iterdir()] == [0o600]


def test_a_store_without_a_replica_or_with_a_path_that_litestream_misreads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotConfigured):
        Settings().check(tmp_path)
    for name in ("what?", "a#b", "100%"):
        with pytest.raises(InvalidReplica, match="cannot open files below"):
            Settings(replica="file:///backup").check(tmp_path / name)


def test_more_tenants_than_there_may_be_open_files_are_refused_with_how_many_there_may(tmp_path: Path) -> None:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard in (resource.RLIM_INFINITY, -1):
        pytest.skip("this process may open any number of files")
    with pytest.raises(BudgetTooSmall) as caught:
        Settings(replica="file:///backup", hot=hard).check(tmp_path)
    assert f"--hot {(hard - 64) // 6}" in caught.value.hint
    Settings(replica="file:///backup", hot=(hard - 64) // 6).check(tmp_path)


def test_the_configuration_names_no_tenant_and_no_replica() -> None:
    text = config_text(Settings(replica="s3://b/t", retention_hours=240), "/run/x.sock")
    for line in (
        "l0-retention: 1h",
        "levels: [{interval: 30s}, {interval: 1h}]",
        "snapshot: {interval: 24h, retention: 240h}",
        "dbs: []",
    ):
        assert f"{line}\n" in text
    assert "s3" not in text, "nor what is to be kept out of a listing"


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("get identity: get credentials: no EC2 IMDS role found", "AWS_ACCESS_KEY_ID"),
        ("NoSuchBucket: The specified bucket does not exist", "make the bucket"),
        ("dial tcp: connection refused", "check the network"),
        ("write: no space left on device", "free space"),
        ("something new", "the log of"),
    ],
)
def test_what_litestream_says_of_a_replica_has_a_hint_that_fits(said: str, hint: str) -> None:
    error = replica_error(said)
    assert said in error.message
    assert hint in error.hint
