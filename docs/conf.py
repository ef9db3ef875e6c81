"""The documentation site: `make docs` builds it from the pages as they are, without a warning."""

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import remotely

project = "remotely"
author = "the authors of remotely"
project_copyright = author
version = release = remotely.__version__

extensions = [
    "myst_parser",  # the pages are Markdown, which also reads well where they lie
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"remotely {release}"
html_static_path = ["site"]
html_css_files = ["tables.css"]
html_js_files = ["tables.js"]
html_search_scorer = str(Path(__file__).resolve().parent / "scorer.js")
html_copy_source = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # decisions begin with their number, at the second level

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
default_role = "code"  # docstrings have code between single backticks

# A line of a table in a docstring: a name, spaces, and what it is.  (So begins no sentence.)
ROW = re.compile(r"^\S+( \S+){0,3}(?<![.:;?])\s{2,}\S")


def keep_tables(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Make literal blocks of the tables and the code in a docstring, which is no reST."""
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    lines[:] = []
    was_literal = False
    for paragraph in filter(None, paragraphs):
        is_table = any(ROW.match(line.strip()) for line in paragraph)
        is_literal = is_table or paragraph[0].startswith("    ")
        if is_literal and not was_literal:
            lines += ["::", ""]
        lines += [*(f"    {line}" if is_literal else line for line in paragraph), ""]
        was_literal = is_literal
    lines += settings_of(thing)


def settings_of(thing: Any) -> list[str]:
    """Return the settings of a Config, a line for each: its default, and what it is."""
    if not isinstance(thing, type) or not hasattr(thing, "make_model"):
        return []
    from remotely_rl import settings  # noqa: PLC0415 - imports torch

    return [f":param {one.name}: {one.prose} [{one.default}]" for one in settings.settings(thing)]


# Pages of the repository's root, to which pages link as `../NAME.md`, and what they are here.
OUTSIDE = {
    "README": "index",
    "CHANGELOG": "changelog",
    "CONTRIBUTING": "contributing",
    "SECURITY": "security",
}

ALGORITHM = """
### {name}

```{{eval-rst}}
.. automodule:: remotely_rl.algorithms.{name}
.. autoclass:: remotely_rl.algorithms.{name}.Config
   :no-members:
   :exclude-members: __init__, __new__
```
"""


def adapt(app: Any, page: str, source: list[str]) -> None:
    """Turn links to pages of the root to where they are here; write the part on algorithms."""
    for outside, here in OUTSIDE.items():
        up = "../" * page.count("/")
        source[0] = source[0].replace(f"]({up}../{outside}.md", f"]({up}{here}.md")
    if page == "decisions/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n0*\n```\n"
    if page == "api":
        from remotely_rl.algorithms import ALGORITHMS  # noqa: PLC0415 - imports much

        source[0] += "".join(ALGORITHM.format(name=name) for name in ALGORITHMS)


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", keep_tables)
    app.connect("source-read", adapt)
