from __future__ import annotations

import copy
import pickle

import pytest

import tenantq
from tenantq import errors
from tenantq.errors import LeaseLost, TenantqError

KINDS = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_a_sentence_of_its_own_and_is_exported(kind: type[TenantqError]) -> None:
    assert issubclass(kind, TenantqError)
    assert getattr(tenantq, kind.__name__) is kind
    error = kind()
    assert error.message
    assert error.message in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_says_what_it_is_about_and_what_to_do(kind: type[TenantqError]) -> None:
    error = kind("it failed", hint="do this", tenant="acme", queue="mail", path="/x")
    assert str(error) == "it failed (do this)"
    assert (error.tenant, error.queue, error.path) == ("acme", "mail", "/x")


def test_an_error_without_a_hint_is_its_message() -> None:
    assert str(TenantqError("it failed")) == "it failed"


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_pickling_and_copying(kind: type[TenantqError]) -> None:
    error = kind("it failed", hint="do this", tenant="acme", queue="mail", path="/x")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is kind
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)


def test_a_lost_lease_lists_the_messages() -> None:
    error = LeaseLost(lost=[3, 5], tenant="acme")
    assert error.lost == (3, 5)
    assert pickle.loads(pickle.dumps(error)).lost == (3, 5)


def test_errors_are_also_what_python_calls_them() -> None:
    assert issubclass(errors.InvalidTenantId, ValueError)
    assert issubclass(errors.PayloadError, ValueError)
    assert issubclass(errors.UnknownTenant, LookupError)
    assert issubclass(errors.StoreNotFound, FileNotFoundError)
    assert issubclass(errors.DeclarationError, TypeError)


def test_all_that_is_exported_is_there_and_sorted() -> None:
    assert all(hasattr(tenantq, name) for name in tenantq.__all__)
    assert sorted(tenantq.__all__) == tenantq.__all__
