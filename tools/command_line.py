"""The command line of a tool, whose help is the tool's docstring."""

import argparse


def parser(command: str, doc: str | None) -> argparse.ArgumentParser:
    """Return a parser for `command`, such as `python -m tools.bench`."""
    return argparse.ArgumentParser(
        prog=command, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
