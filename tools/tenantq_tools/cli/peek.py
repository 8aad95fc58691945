"""`tenantq peek`: what waits in a queue."""

from __future__ import annotations

import click

from tenantq_tools.cli._options import open_store, with_json, with_store
from tenantq_tools.cli._output import describe, note, print_json, print_table, shorten

__all__ = ["peek"]


@click.command()
@click.argument("tenant")
@click.argument("queue")
@click.option("--limit", type=click.IntRange(min=1), default=10, show_default=True, help="Messages at most.")
@click.option(
    "--width",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Characters of a payload; --json has all of it.",
)
@with_store()
@with_json
def peek(*, tenant: str, queue: str, limit: int, width: int, store_path: str, as_json: bool) -> None:
    """Show what waits in a queue; nothing is claimed.

    First what is claimable, in the order of the claims, then what waits for its time. A payload of bytes is
    shown as <N bytes> and hex.

    \b
    Example:
      tenantq peek acme report.build --limit 3
    """
    with open_store(store_path) as store:
        messages = store.tenant(tenant, create=False).peek(queue, limit)
    if as_json:
        for message in messages:
            print_json(describe(message))
        return
    if not messages:
        note(f"Nothing waits in queue {queue}.")
        return
    print_table(
        ("ID", "PRIORITY", "ATTEMPTS", "VISIBLE_AT", "KEY", "PAYLOAD"),
        [
            (
                message.id,
                message.priority,
                f"{message.attempts}/{message.max_attempts}",
                message.visible_at.isoformat(timespec="seconds"),
                message.key,
                shorten(message.body, width),
            )
            for message in messages
        ],
    )
