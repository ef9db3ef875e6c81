"""Notes on a run: a text and tags, in notes.json of its folder.

They are the user's, and neither training nor resuming changes them.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from remotely_rl import durable
from remotely_rl.errors import TrainingError
from remotely_rl.runs import run_folder

NAME = "notes.json"
MAX_BYTES = 1 << 20  # which the dashboard reads


class Notes(NamedTuple):
    """What a user has noted about a run."""

    text: str = ""
    tags: tuple[str, ...] = ()


def parsed(content: bytes) -> Notes | None:
    """Parse a notes.json; None if it is not one."""
    try:
        match json.loads(content):
            case {"text": str(text), "tags": [*tags]}:
                return Notes(text, tuple(str(tag) for tag in tags))
    except ValueError:
        pass
    return None


def read(run: str | Path) -> Notes:
    """Return the notes on a run.  Raises TrainingError if it is none, or if they are unreadable."""
    run_folder.read(run)
    file = Path(run) / NAME
    try:
        found = parsed(file.read_bytes())
    except FileNotFoundError:
        return Notes()
    except OSError as error:
        raise TrainingError(f"{file} cannot be read: {error.strerror}") from None
    if found is None:  # edited by hand: a change would replace what the user has written
        raise TrainingError(f'{file} is not {{"text": "...", "tags": [...]}}: mend or remove it')
    return found


def change(
    run: str | Path, text: str | None, tags: Iterable[str] = (), without: Iterable[str] = ()
) -> Notes:
    """Replace the text, unless it is None; add and remove tags.  Returns the new notes.

    Raises TrainingError if there is no such run, for a tag with a space or comma, for a text over
    MAX_BYTES, and if the notes cannot be read or written.
    """
    before, tags = read(run), list(tags)
    for tag in tags:
        if tag.split() != [tag] or "," in tag:
            raise TrainingError(f"a tag is a word without spaces and commas, not {tag!r}")
    kept = dict.fromkeys([*before.tags, *tags])
    for tag in without:
        kept.pop(tag, None)
    notes = Notes(before.text if text is None else text.strip(), tuple(kept))
    content = json.dumps({"text": notes.text, "tags": list(notes.tags)})
    if len(content) > MAX_BYTES:
        raise TrainingError(f"a note has {MAX_BYTES >> 10} KiB at most, not {len(content) >> 10}")
    try:
        durable.write(Path(run) / NAME, [content.encode()])
    except OSError as error:
        raise TrainingError(f"{Path(run) / NAME} cannot be written: {error.strerror}") from None
    return notes
