"""`--metrics`: what a process that runs on does, served for Prometheus."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["serve_metrics", "with_metrics"]

F = TypeVar("F", bound=Callable[..., Any])

MOST_PORT = 65_535


def with_metrics(function: F) -> F:
    """Add `--metrics`; the parameter is `metrics_address`."""
    return click.option(
        "--metrics",
        "metrics_address",
        metavar="[HOST:]PORT",
        help="Serve metrics for Prometheus.  [default host: 127.0.0.1]",
    )(function)


def serve_metrics(address: str, collector: Callable[[Any], object]) -> str:
    """Serve what a collector of tenantq_tools.metrics, which is given that module, collects; return the URL."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > MOST_PORT:
        raise click.BadParameter(f"{address} is not of the form [HOST:]PORT", param_hint="--metrics")
    try:
        metrics = importlib.import_module("tenantq_tools.metrics")
    except ImportError as exc:
        raise click.UsageError("metrics need prometheus-client: pip install 'tenantq[metrics]'") from exc
    host = host or "127.0.0.1"
    try:
        return f"http://{host}:{metrics.serve(collector(metrics), host, int(port))}/metrics"
    except OSError as exc:
        raise click.UsageError(f"metrics cannot be served at {address}: {exc}") from exc
