"""The one check command: `python tools/check.py` runs all that CI does but the tests; `--tests` runs those too."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

CHECKS = {
    "format": ["ruff", "format", "--check", "."],
    "lint": ["ruff", "check", "."],
    "import contracts": ["lint-imports", "--no-cache"],
    "types": ["mypy"],
}


def main() -> int:
    """Run every check, whatever the others say; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", action="store_true", help="run the tests too")
    arguments = parser.parse_args()
    checks = dict(CHECKS)
    if arguments.tests:
        checks["tests"] = ["pytest"]
    failed = [name for name, command in checks.items() if not run(name, command)]
    problem = version_problem()
    if problem:
        print(f"version: {problem}")
        failed.append("version")
    print(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return 1 if failed else 0


def run(name: str, command: list[str]) -> bool:
    """Run one check of this interpreter's environment; print how long it took."""
    started = time.monotonic()
    program = Path(sys.executable).parent / command[0]
    done = subprocess.run([str(program), *command[1:]], cwd=ROOT, check=False)
    print(f"{name}: {'ok' if done.returncode == 0 else 'FAILED'} ({time.monotonic() - started:.1f} s)", flush=True)
    return done.returncode == 0


def version_problem() -> str:
    """Say what is wrong between the version and the change log; empty if they agree."""
    version = re.search(r'__version__ = "(.+)"', (ROOT / "tenantq" / "_version.py").read_text())
    log = (ROOT / "CHANGELOG.md").read_text()
    if version is None:
        return "tenantq/_version.py names none"
    if "## [Unreleased]" in log or f"## [{version[1]}]" in log:
        return ""
    return f"CHANGELOG.md has neither an entry for {version[1]} nor [Unreleased]"


if __name__ == "__main__":
    sys.exit(main())
