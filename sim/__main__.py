"""The simulator from a shell: python -m sim run | replay | sweep | diagnose | conformance | validate | headlines | bench."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module

from sim.scenario import SimError

COMMANDS = {
    "run": "sim.shell",
    "replay": "sim.shell",
    "sweep": "sim.sweep",
    "diagnose": "sim.vllm.paste",
    "conformance": "sim.conformance",
    "validate": "sim.validate",
    "headlines": "sim.headlines",
    "bench": "sim.bench",
}
"""Command -> its module, whose `command(subparsers)` adds a parser with a default `run(args) -> exit status`."""


def main(argv: list[str] | None = None) -> int:
    """Run one command. Status 0: done; 1: it found something wrong; 2: it was asked something it cannot do."""
    words = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="python -m sim", description="Simulate vLLM's scheduler.")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = COMMANDS.get(words[0]) if words else None  # one command need not pay for the imports of all
    for module in dict.fromkeys([asked] if asked else COMMANDS.values()):
        import_module(module).command(subparsers)
    args = parser.parse_args(words)
    try:
        return int(args.run(args))
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (SimError, OSError) as error:  # OSError: a file that cannot be read or written
        print(f"{parser.prog} {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
