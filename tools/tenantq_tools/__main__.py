"""The console script `tenantq`, which is also `python -m tenantq_tools`."""

from __future__ import annotations

import io
import sys

__all__ = ["main"]

MISSING_EXTRA = 2
"""The exit status of a command that lacks its packages, as of any other wrong usage."""


def main() -> None:
    """Run the command, or say what to install if the extra `cli` is missing."""
    try:
        from tenantq_tools.cli import tenantq  # noqa: PLC0415 - click and rich are an extra
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in ("click", "rich"):
            raise
        sys.stderr.write(f"tenantq: error: {exc.name} is missing: pip install 'tenantq[cli]'\n")
        sys.exit(MISSING_EXTRA)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an id that the terminal cannot spell is no crash
    tenantq(prog_name="tenantq")


if __name__ == "__main__":
    main()
