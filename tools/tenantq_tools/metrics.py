"""What a worker's process does, for Prometheus: totals of the process, never a series for each tenant."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import start_http_server
from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric

from tenantq import Worker

__all__ = ["WorkerCollector", "serve"]


class WorkerCollector:
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
        messages = CounterMetricFamily(
            "tenantq_messages", "Messages that left a handler, by layer and outcome.", labels=["layer", "outcome"]
        )
        for name, count in self._worker.counts.items():
            layer, is_of_layer, outcome = name.partition(".")
            if is_of_layer:
                messages.add_metric([layer, outcome], count)
        yield messages


def serve(worker: Worker, host: str, port: int) -> int:
    """Serve the metrics at http://host:port/metrics from a thread; return the port, which 0 leaves open."""
    registry = CollectorRegistry()
    registry.register(WorkerCollector(worker))
    server, _thread = start_http_server(port, host, registry)
    return int(server.server_port)
