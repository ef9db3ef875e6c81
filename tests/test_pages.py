"""The Python blocks of the README and of docs/ run, unless they are marked otherwise."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import remotely
import remotely_rl.errors
from tests import pages

# Pages that only include or list others.
WITHOUT_CODE = {"docs/changelog.md", "docs/contributing.md", "docs/index.md", "docs/security.md"}


def text_of(page: str) -> str:
    return (pages.ROOT / page).read_text(encoding="utf-8")


def runs_of(page: str) -> bool:
    return any(not block.why_not for block in pages.blocks(text_of(page)))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("learns", [False, True], ids=["on a cluster", "learning, in one process"])
def test_every_python_block_of_the_pages_runs(learns: bool, tmp_path: Path) -> None:
    chosen = [
        page
        for page in pages.PAGES
        if runs_of(page) and pages.uses_learning(text_of(page)) == learns
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REMOTELY_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.pages", *chosen],
        cwd=tmp_path,
        env={
            **environment,
            "PYTHONPATH": str(pages.ROOT),
            "REMOTELY_HOME": str(tmp_path / "home"),
            **({"REMOTELY_LOCAL": "1"} if learns else {}),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^\S+: [1-9]\d* run, \d+ not$", done.stdout, re.MULTILINE)) == len(
        chosen
    )


@pytest.mark.parametrize("page", sorted({*pages.PAGES} - WITHOUT_CODE))
def test_a_page_begins_with_code(page: str) -> None:
    after_title = re.split(r"^# .+\n+", text_of(page), maxsplit=1, flags=re.MULTILINE)[1]
    assert re.match(r"(<!-- first:.*?-->\n)?```python\n| {4}\S", after_title, re.DOTALL)


def test_a_block_has_its_line_and_its_hidden_code() -> None:
    page = (
        "# Title\n\n```python\na = 1\n```\n\n<!-- not run: it takes a robot -->\n"
        "```python\ngo()\n```\n<!-- first: x = 2 -->\n```python\nprint(x)\n```\n"
    )
    assert pages.blocks(page) == [
        pages.Block(4, "a = 1\n", "", ""),
        pages.Block(9, "go()\n", "", "it takes a robot"),
        pages.Block(13, "print(x)\n", "x = 2", ""),
    ]


def test_the_output_of_a_block_must_match_its_comments() -> None:
    code = "print(1)  # one: 1\nfor x in range(2):\n    print(x)\nprint(3)  # 3\n"
    assert pages.broken_promises(code, "1\n0\n1\n3\n") == []
    assert pages.broken_promises(code, "1\n0\n1\n4\n") == ["3"]
    assert pages.broken_promises(code, "3\n1\n") == ["3"]  # in another order


def is_there(name: str) -> bool:
    """Return whether a dotted name exists, or needs a package that is not installed."""
    thing: Any = None
    parts = name.split(".")
    for count, part in enumerate(parts, 1):
        try:
            thing = importlib.import_module(".".join(parts[:count]))
        except ImportError as error:
            if (error.name or "").partition(".")[0] != parts[0]:
                return True  # another package is missing
            if not hasattr(thing, part):
                return False
            thing = getattr(thing, part)
    return True


@pytest.mark.parametrize("page", [*pages.PAGES, "SECURITY.md", "CONTRIBUTING.md"])
def test_every_name_that_a_page_uses_exists(page: str) -> None:
    used = re.findall(r"(?<![\w/.-])(remotely(?:_rl)?(?:\.[A-Za-z_]\w*)+)", text_of(page))
    assert [name for name in sorted({*used}) if not is_there(name)] == []


def test_every_public_error_is_on_its_page() -> None:
    public = [getattr(remotely, name) for name in remotely.__all__]
    found = {
        thing.__name__
        for thing in [*public, *vars(remotely_rl.errors).values()]
        if isinstance(thing, type) and issubclass(thing, Exception)
    }
    assert {"ActorDied", "LearnerLost"} <= found
    assert set(re.findall(r"^\| `(\w+)`.* \|", text_of("docs/errors.md"), re.MULTILINE)) >= found


@pytest.mark.parametrize("package", ["remotely", "remotely_rl"])
def test_every_public_name_has_a_docstring(package: str) -> None:
    module = sys.modules[package]
    assert [n for n in module.__all__ if not (getattr(module, n).__doc__ or "").strip()] == []
