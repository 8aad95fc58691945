"""placeholder"""

from tenantq_bridge.queue import PostgresQueue

__all__ = ["PostgresQueue"]
