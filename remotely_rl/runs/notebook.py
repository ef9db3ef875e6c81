"""A run in a notebook: the table while it trains, changed in place, and its result with its curve.

IPython is asked for by name, because it is there in a notebook alone.
"""

import base64
import html
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table


class Cell:
    """The table in the output of a cell, as rich's `Live` is in a terminal.

    rich's own needs ipywidgets here.
    """

    def __init__(self) -> None:
        self._shown: Any = None

    def update(self, table: Table, refresh: bool = True) -> None:
        """Shows the table in place of the last one."""
        if self._shown is None:
            display: Any = importlib.import_module("IPython.display")
            self._shown = display.display(table, display_id=True)
        else:
            self._shown.update(table)

    def stop(self) -> None:
        """Leaves the last table standing."""


def as_html(facts: Mapping[str, object], png: Path) -> str:
    """Facts as a table of HTML, and the picture below it, if there is one."""
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(str(fact))}</td></tr>"
        for name, fact in facts.items()
    )
    picture = ""
    if png.exists():
        content = base64.b64encode(png.read_bytes()).decode()
        picture = f'<img src="data:image/png;base64,{content}" alt="the learning curve">'
    return f"<table>{rows}</table>{picture}"
