"""Images and histograms in a run folder: what is kept of many, and of a resumed run."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from remotely_rl.runs import media
from remotely_rl.runs.media import Media


def files_of(folder: Path) -> set[str]:
    return {path.name for path in (folder / media.FOLDER).iterdir()}


def histograms_of(folder: Path, name: str) -> list[dict[str, Any]]:
    text = (folder / media.FOLDER / f"{media.quoted(name)}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_the_newest_images_of_each_name_are_kept(tmp_path: Path) -> None:
    written = Media(tmp_path)
    picture = np.full((2, 3, 3), 0.5)
    for step in range(media.MOST_IMAGES + 5):
        written.image("mine/a maze", picture, step)
    written.image("other", picture[:, :, :1], 0)
    images = media.images(files_of(tmp_path))
    steps = {image.step for image in images if media.unquoted(image.name) == "mine/a maze"}
    assert steps == set(range(5, media.MOST_IMAGES + 5))
    image = Image.open(tmp_path / media.FOLDER / "mine%2Fa%20maze@9.png")
    assert (image.size, image.getpixel((0, 0))) == ((3, 2), (127, 127, 127))


def test_many_histograms_are_thinned_and_the_first_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media, "MOST_LINES", 8)
    written = Media(tmp_path)
    for step in range(100):
        written.histogram("h", np.arange(101.0), step)
    found = histograms_of(tmp_path, "h")
    assert len(found) < 8
    steps = [line["step"] for line in found]
    assert steps[0] == 0
    assert len({after - before for before, after in itertools.pairwise(steps)}) == 1
    assert found[0]["quantiles"] == [0.0, 5.0, 25.0, 50.0, 75.0, 95.0, 100.0]
    assert (sum(found[0]["counts"]), found[0]["ends"]) == (101, [0.0, 100.0])


def test_a_resumed_run_drops_what_its_checkpoint_does_not_include(tmp_path: Path) -> None:
    written = Media(tmp_path)
    for step in (10, 20, 30):
        written.image("i", np.zeros((1, 1, 3)), step)
        written.histogram("h", np.zeros(3), step)
    with (tmp_path / media.FOLDER / "h.jsonl").open("a") as file:
        file.write('{"cut')
    resumed = Media(tmp_path, 21)
    resumed.histogram("h", np.zeros(3), 40)
    assert files_of(tmp_path) == {"i@10.png", "i@20.png", "h.jsonl"}
    assert [line["step"] for line in histograms_of(tmp_path, "h")] == [10, 20, 40]


@pytest.mark.parametrize("name", ["../../x", "a/b", "a@3.png", ".", "é" * 300, "nul\0"])
def test_any_name_is_that_of_a_file_in_the_folder(tmp_path: Path, name: str) -> None:
    Media(tmp_path).image(name, np.zeros((1, 1, 3)), 5)
    (image,) = media.images(files_of(tmp_path))
    assert image.step == 5
    assert name.startswith(media.unquoted(image.name)[:20])


@pytest.mark.parametrize(
    "numbers",
    [
        [0.1 + 0.2, 0.3],
        [1e20, 1.0000000000000002e20],
        [-1.7e308, 1.7e308],
        [1e308],
        [0.0],
        [5e-324, 0],
    ],
)
def test_any_finite_numbers_have_a_histogram(tmp_path: Path, numbers: list[float]) -> None:
    Media(tmp_path).histogram("h", np.array(numbers), 0)
    (found,) = histograms_of(tmp_path, "h")
    assert sum(found["counts"]) == len(numbers)
    assert np.isfinite(found["ends"]).all()


def test_long_names_with_the_same_beginning_have_files_of_their_own(tmp_path: Path) -> None:
    names = ["é" * 200 + end for end in "ab"]
    written = Media(tmp_path)
    for name in names:
        written.image(name, np.zeros((1, 1, 3)), 0)
        written.histogram(name, np.zeros(3), 0)
    assert len(files_of(tmp_path)) == 4
    begin = media.unquoted(media.quoted(names[0])).rpartition("-")[0]
    assert names[0].startswith(begin)
