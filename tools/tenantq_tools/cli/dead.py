"""`tenantq dead`: the messages that used up their attempts."""

from __future__ import annotations

import click

from tenantq_tools.cli._failures import PROBLEM
from tenantq_tools.cli._options import confirm, open_store, with_json, with_store, with_yes
from tenantq_tools.cli._output import describe, note, print_json, print_table, printable, shorten

__all__ = ["dead"]


@click.group()
def dead() -> None:
    """List dead letters, make them ready again, or remove them.

    \b
    Example:
      tenantq dead list acme && tenantq dead redrive acme --queue report.build
    """


@dead.command(name="list")
@click.argument("tenant")
@click.option("--queue", metavar="Q", help="Of this queue only.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Letters at most.")
@click.option(
    "--width",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    help="Characters of an error and of a payload; --json has all of them.",
)
@with_store()
@with_json
def list_dead(
    *,
    tenant: str,
    queue: str | None,
    limit: int,
    width: int,
    store_path: str,
    as_json: bool,
) -> None:
    """List a tenant's dead letters with their last errors, the oldest ids first.

    \b
    Example:
      tenantq dead list acme --queue report.build
    """
    with open_store(store_path) as store:
        letters = store.tenant(tenant, create=False).dead_letters(queue, limit)
    if as_json:
        for letter in letters:
            print_json(describe(letter))
        return
    if not letters:
        note("There are no dead letters.")
        return
    print_table(
        ("ID", "QUEUE", "ATTEMPTS", "ENQUEUED_AT", "ERROR", "PAYLOAD"),
        [
            (
                letter.id,
                letter.queue,
                f"{letter.attempts}/{letter.max_attempts}",
                letter.enqueued_at.isoformat(timespec="seconds"),
                shorten(letter.error or "", width),
                shorten(letter.body, width),
            )
            for letter in letters
        ],
    )


@dead.command()
@click.argument("tenant")
@click.argument("ids", metavar="[ID]...", type=int, nargs=-1)
@click.option("--queue", metavar="Q", help="All of this queue.")
@click.option("--all", "is_all", is_flag=True, help="All of the tenant.")
@with_store()
@with_json
@click.pass_context
def redrive(
    ctx: click.Context,
    *,
    tenant: str,
    ids: tuple[int, ...],
    queue: str | None,
    is_all: bool,
    store_path: str,
    as_json: bool,
) -> None:
    """Make dead letters ready again, under their ids and with no attempts counted.

    Those with the given ids, all of a queue, or all. One whose key a live message has stays dead. The exit
    status is 1 if one of the given ids was not redriven.

    \b
    Examples:
      tenantq dead redrive acme 17 23
      tenantq dead redrive acme --queue report.build
    """
    _check_choice(bool(ids), queue is not None, is_all, "IDs, --queue Q or --all")
    with open_store(store_path) as store:
        count = store.tenant(tenant, create=False).redrive(*ids, queue=queue)
    if as_json:
        print_json({"tenant": tenant, "queue": queue, "redriven": count})
    else:
        click.echo(f"{printable(tenant)}: {count} redriven")
    missing = len(set(ids)) - count
    if ids and missing:
        note(f"{missing} were not: there is no such dead letter, or a live message has its key.")
        ctx.exit(PROBLEM)


@dead.command()
@click.argument("tenant")
@click.option("--queue", metavar="Q", help="All of this queue.")
@click.option("--all", "is_all", is_flag=True, help="All of the tenant.")
@with_yes
@with_store()
@with_json
def purge(
    *,
    tenant: str,
    queue: str | None,
    is_all: bool,
    yes: bool,
    store_path: str,
    as_json: bool,
) -> None:
    """Remove dead letters for good: all of a queue, or all.

    \b
    Example:
      tenantq dead purge acme --queue report.build --yes
    """
    _check_choice(queue is not None, is_all, "--queue Q or --all")
    with open_store(store_path) as store:
        chosen = store.tenant(tenant, create=False)
        held = sum(found.dead for found in chosen.stats().queues if queue in (None, found.queue))
        confirm(f"Remove {held} dead letters of {_where(tenant, queue)}?", yes=yes)
        count = chosen.purge_dead(queue)
    if as_json:
        print_json({"tenant": tenant, "queue": queue, "purged": count})
    else:
        click.echo(f"{printable(tenant)}: {count} dead letters removed")


def _check_choice(*choices: bool | str) -> None:
    *given, names = choices
    if sum(bool(choice) for choice in given) != 1:
        raise click.UsageError(f"give one of {names}")


def _where(tenant: str, queue: str | None) -> str:
    tenant = printable(tenant)
    return f"tenant {tenant}" if queue is None else f"queue {printable(queue)} of tenant {tenant}"
