"""A runner for the Python blocks of pages: all blocks of a page in one namespace, as one script.

    python -m tests.pages README.md docs/guide.md      prints how many ran, and why others did not

A comment before a block, which is hidden from readers, may skip it or prepare it:

    <!-- not run: it needs a robot -->
    <!-- first: step = actor.step -->       Python that runs before the block

The output of a block must match its comments: `print(x)  # the sum: 3` ends with what it prints.
Training is cut to a few steps of one small actor.
"""

import contextlib
import dataclasses
import functools
import io
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import remotely

ROOT = Path(__file__).resolve().parent.parent
FOUND = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "lab").glob("*.md")]
PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in FOUND))

BLOCK = re.compile(
    r"(?:^<!-- (?P<word>not run|first):\s(?P<said>(?:(?!-->).)*)-->\n\s*)?"
    r"^```python\n(?P<code>.*?)^```",
    re.DOTALL | re.MULTILINE,
)
PROMISED = re.compile(r"^print\(.*\)  # (.+)$", re.MULTILINE)

# The settings of training in a page, as far as the Config of an algorithm has them.
SMALL = {
    "total_steps": 32,
    "actors": 1,
    "envs_per_actor": 2,
    "rollout_steps": 8,
    "probe_steps": 16,
    "epochs": 1,
    "minibatches": 2,
}
AS_USUAL = ("minutes", "target", "evaluate_every")


class Block(NamedTuple):
    """A block of Python in a page."""

    line: int  # of its first line of code
    code: str
    first: str  # hidden code that runs before
    why_not: str  # empty if it runs


def blocks(text: str) -> list[Block]:
    """Return the blocks of a page, in order."""
    found = []
    for match in BLOCK.finditer(text):
        said = (match["said"] or "").strip()
        line = text.count("\n", 0, match.start("code")) + 1
        hidden = {"not run": "", "first": said}.get(match["word"] or "", "")
        found.append(Block(line, match["code"], hidden, said if match["word"] == "not run" else ""))
    return found


def uses_learning(text: str) -> bool:
    """Return whether a block of the page that runs imports remotely_rl."""
    return any("remotely_rl" in one.first + one.code for one in blocks(text) if not one.why_not)


def broken_promises(code: str, said: str) -> list[str]:
    """Return the comments of print calls that do not end with the printed line, in order."""
    lines = iter(said.splitlines())
    return [
        comment
        for comment in PROMISED.findall(code)
        if not any(line and comment.endswith(line) for line in lines)
    ]


def run(page: str) -> tuple[int, list[str]]:
    """Run the blocks of a page.  Return how many ran, and where and why others did not."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    ran, why_not = 0, []
    for block in blocks((ROOT / page).read_text(encoding="utf-8")):
        if block.why_not:
            why_not.append(f"{page}:{block.line}: {block.why_not}")
            continue
        exec(block.first, namespace)  # noqa: S102 - a page's code is ours
        said = io.StringIO()
        at_its_line = "\n" * (block.line - 1) + block.code
        with contextlib.redirect_stdout(said):
            exec(compile(at_its_line, ROOT / page, "exec"), namespace)  # noqa: S102 - as above
        if missing := broken_promises(block.code, said.getvalue()):
            raise AssertionError(f"{page}:{block.line} promises {missing}: {said.getvalue()!r}")
        ran += 1
    return ran, why_not


@contextlib.contextmanager
def training_cut_short() -> Iterator[None]:
    """Cut all training to SMALL, and write an empty file in place of the plotted curve."""
    import remotely_rl
    from remotely_rl.runs import curve

    whole = remotely_rl.Train.__call__

    @functools.wraps(whole)
    def cut(train: Any, config: Any = None, *args: Any, **options: Any) -> Any:
        if config is not None:
            usual = {field.name: field.default for field in dataclasses.fields(config)}
            smaller = SMALL | {name: usual[name] for name in AS_USUAL if name in usual}
            config = dataclasses.replace(
                config, **{name: smaller[name] for name in smaller if name in usual}
            )
        return whole(train, config, *args, **options)

    with (
        mock.patch.object(remotely_rl.Train, "__call__", cut),
        mock.patch.object(curve, "draw", lambda csv, png, title: png.touch()),
    ):
        yield


def main(pages: list[str]) -> int:
    """Run pages; print the results, and return the number of failures."""
    learns = any(uses_learning((ROOT / page).read_text(encoding="utf-8")) for page in pages)
    failed = 0
    with training_cut_short() if learns else contextlib.nullcontext():
        for page in pages:
            try:
                ran, why_not = run(page)
            except Exception:
                failed += 1
                traceback.print_exc()
            else:
                print("\n".join([f"{page}: {ran} run, {len(why_not)} not", *why_not]))
            remotely.shutdown()
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
