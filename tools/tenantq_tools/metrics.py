"""What a worker's or a bridge's process does, for Prometheus: its totals, never a series for each tenant."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import start_http_server
from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tenantq import Worker

if TYPE_CHECKING:
    from tenantq_bridge import Deliverer, Forwarder, Maintenance

__all__ = ["BridgeCollector", "WorkerCollector", "serve"]


class WorkerCollector(Collector):
    """The counts of a worker and of its store's files in this process. A scrape opens no file."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        """Yield each metric as it is now."""
        activity = self._worker.store.activity()
        yield GaugeMetricFamily("tenantq_open_tenants", "Tenants' files that are open.", activity.open_tenants)
        yield GaugeMetricFamily(
            "tenantq_failing_tenants",
            "Tenants that could not be served when last tried.",
            activity.failing_tenants,
        )
        yield CounterMetricFamily("tenantq_commits", "Transactions on tenants' files.", activity.commits)
        yield CounterMetricFamily("tenantq_operations", "Calls that these carried.", activity.operations)
        yield CounterMetricFamily(
            "tenantq_busy_waits", "Waits for another process's lock on a file.", activity.busy_waits
        )
        yield CounterMetricFamily(
            "tenantq_busy_wait_seconds", "How long these took, all in all.", activity.busy_seconds
        )
        yield GaugeMetricFamily(
            "tenantq_busy_wait_longest_seconds", "How long the longest of these took.", activity.busy_longest
        )
        yield CounterMetricFamily(
            "tenantq_migrated_files", "Files of an older schema that were migrated.", activity.migrated
        )
        messages = CounterMetricFamily(
            "tenantq_messages", "Messages that left a handler, by layer and outcome.", labels=["layer", "outcome"]
        )
        for name, count in self._worker.counts.items():
            layer, is_of_layer, outcome = name.partition(".")
            if is_of_layer:
                messages.add_metric([layer, outcome], count)
        yield messages


class BridgeCollector(Collector):
    """The counts of a host's forwarder, deliverer and maintenance. A scrape asks neither a file nor Postgres."""

    def __init__(self, forwarder: Forwarder, deliverer: Deliverer, maintenance: Maintenance) -> None:
        self._forwarder = forwarder
        self._deliverer = deliverer
        self._maintenance = maintenance

    def collect(self) -> Iterator[Metric]:
        """Yield each metric as it is now."""
        yield from self._forwarded()
        yield from self._breaker()
        deliverer = self._deliverer
        yield CounterMetricFamily(
            "tenantq_delivered_messages", "Messages that were put into tenants' files.", deliverer.delivered
        )
        yield GaugeMetricFamily(
            "tenantq_foreign_tenants", "Tenants of the store that another host owns.", len(deliverer.foreign)
        )
        failed = GaugeMetricFamily(
            "tenantq_failed_tenants", "Tenants whose files failed, and that wait for it.", labels=["role"]
        )
        rounds = CounterMetricFamily(
            "tenantq_failed_rounds", "Rounds of a role that ended with an error.", labels=["role"]
        )
        for role in (self._forwarder, deliverer):
            failed.add_metric([role.name], len(role.tenant_failures))
        for service in (self._forwarder, deliverer, self._maintenance):
            rounds.add_metric([service.name], service.failures)
        yield failed
        yield rounds

    def _forwarded(self) -> Iterator[Metric]:
        from tenantq_bridge.activity import LAG_BOUNDS  # noqa: PLC0415 - an extra

        activity = self._forwarder.activity()
        yield CounterMetricFamily(
            "tenantq_forwarded_events", "Events that were committed in Postgres.", activity.forwarded
        )
        yield CounterMetricFamily("tenantq_forwarded_batches", "Transactions that carried them.", activity.batches)
        yield CounterMetricFamily(
            "tenantq_undeliverable_events", "Events that Postgres refused.", activity.undeliverable
        )
        yield CounterMetricFamily(
            "tenantq_quarantined_tenants", "Tenants that were put into quarantine.", activity.quarantines
        )
        yield GaugeMetricFamily(
            "tenantq_waiting_tenants",
            "Tenants that have events, or are to be looked at.",
            activity.waiting_tenants,
        )
        bounds = [*map(str, LAG_BOUNDS), "+Inf"]
        yield HistogramMetricFamily(
            "tenantq_forwarding_lag_seconds",
            "How long the first event of a tenant's part of a batch had waited when it was committed.",
            buckets=list(zip(bounds, accumulate(activity.lag_counts), strict=True)),
            sum_value=activity.lag_seconds,
        )

    def _breaker(self) -> Iterator[Metric]:
        from tenantq_bridge import BreakerState  # noqa: PLC0415 - an extra

        breaker, target = self._forwarder.breaker, self._forwarder.queue.kind
        states = GaugeMetricFamily(
            "tenantq_breaker_state", "1 for the state that the breaker is in.", labels=["target", "state"]
        )
        for state in BreakerState:
            states.add_metric([target, state.value], int(breaker.state is state))
        yield states
        failures = GaugeMetricFamily(
            "tenantq_breaker_failures", "Tries that failed since the breaker was closed.", labels=["target"]
        )
        failures.add_metric([target], breaker.failures)
        yield failures


def serve(collector: Collector, host: str, port: int) -> int:
    """Serve the metrics at http://host:port/metrics from a thread; return the port, which 0 leaves open."""
    registry = CollectorRegistry()
    registry.register(collector)
    server, _thread = start_http_server(port, host, registry)
    return int(server.server_port)
