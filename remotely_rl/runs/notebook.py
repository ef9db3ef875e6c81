"""Output of a run in a notebook: a table updated in place, and the result with its curve.

IPython is imported by name because it exists only in a notebook.
"""

import base64
import html
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table


class Cell:
    """A table in a cell's output, in place of rich's `Live`, which needs ipywidgets here."""

    def __init__(self) -> None:
        self._shown: Any = None

    def update(self, table: Table, refresh: bool = True) -> None:
        """Replace the table shown."""
        if self._shown is None:
            display: Any = importlib.import_module("IPython.display")
            self._shown = display.display(table, display_id=True)
        else:
            self._shown.update(table)

    def stop(self) -> None:
        """Leave the last table."""


def as_html(facts: Mapping[str, object], png: Path) -> str:
    """Return an HTML table of facts, with the image below it if the file exists."""
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(str(fact))}</td></tr>"
        for name, fact in facts.items()
    )
    picture = ""
    if png.exists():
        content = base64.b64encode(png.read_bytes()).decode()
        picture = f'<img src="data:image/png;base64,{content}" alt="the learning curve">'
    return f"<table>{rows}</table>{picture}"
