"""Tests of playing: scores and videos."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest
from click.testing import CliRunner, Result
from numpy.typing import NDArray

from remotely_rl import a2c
from remotely_rl.acting.policy import one_thread
from remotely_rl.agents import load
from remotely_rl.agents.video import SecondCopy, enlarged, play, watched
from remotely_rl.cli import main
from remotely_rl.environments import Episode
from remotely_rl.errors import TrainingError
from tests.remotely_rl import toys

pytestmark = pytest.mark.usefixtures("local", "no_curve")


def train(run: Path, env: Any) -> Path:
    config = a2c.Config(
        env=env,
        actors=1,
        envs_per_actor=2,
        rollout_steps=4,
        random_start=0,
        total_steps=8,
        learner_threads=1,
    )
    a2c.train(config, run=run)
    return run


def trained_once(env: Any, folder: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REMOTELY_LOCAL", "1")
        return train(folder / "run", env)


@pytest.fixture(scope="module")
def pong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_once("ALE/Pong-v5", tmp_path_factory.mktemp("pong"))


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_once(toys.Counting, tmp_path_factory.mktemp("counting"))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run in an environment that renders itself, known by its id."""
    gymnasium.register("Drawn-v0", f"{toys.__name__}:Drawn")
    yield trained_once("Drawn-v0", tmp_path_factory.mktemp("drawn"))
    del gymnasium.registry["Drawn-v0"]


def invoke(*command: str) -> Result:
    return CliRunner().invoke(main, command)


def pictures_of(video: Path) -> tuple[dict[str, Any], list[NDArray[np.uint8]]]:
    """Return the metadata of a video, and its pictures."""
    ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
    command = [ffmpeg, "-i", str(video), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, check=True, capture_output=True)
    found = re.search(rb"h264.*yuv420p.* (\d+)x(\d+).* (\d+) fps", done.stderr)
    assert found is not None, done.stderr
    width, height, fps = map(int, found.groups())
    pictures = np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)
    return {"size": (width, height), "fps": fps}, list(pictures)


# --- pictures -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_left")
def test_an_atari_game_is_filmed_in_colour_at_its_own_rate(pong: Path, tmp_path: Path) -> None:
    video = tmp_path / "pong.mp4"
    played = play(pong, video, steps=12)
    about, pictures = pictures_of(video)
    assert about["size"] == (320, 420)
    assert about["fps"] == 15
    assert len(pictures) == played.pictures == 13  # the first is that of the reset
    assert np.allclose(pictures[-1][200, 160], (144, 72, 17), atol=12)  # Pong's brown


def test_the_picture_is_that_of_the_agents_game(pong: Path) -> None:
    agent = load.load(pong)
    envs, screen = watched(agent)
    obs = envs.reset(5)
    picture = screen.reset(5)
    for turn, (action, step) in enumerate(agent.play(envs, obs, greedy=False, seed=5)):
        picture = screen.step(action, step)
        if turn == 40:
            break
    # The agent's newest frame, and the picture in gray, reduced by averaging whole blocks.
    seen = step.obs[0, -1].astype(float)
    gray = picture @ [0.299, 0.587, 0.114]
    small = np.stack([gray[:, np.r_[i : 160 : 160 / 42].astype(int)] for i in (0, 1, 2)]).mean(0)
    small = small.reshape(42, 5, 42).mean(1)
    assert np.corrcoef(seen.flatten(), small.flatten())[0, 1] > 0.95
    screen.close()
    envs.close()


def test_copies_that_diverge_raise(pong: Path) -> None:
    agent = load.load(pong)
    envs, screen = watched(agent)
    assert isinstance(screen, SecondCopy)
    _, (action, step) = screen.reset(1), next(agent.play(envs, envs.reset(1), False, 1))
    with pytest.raises(TrainingError, match="diverged from the agent's: the video"):
        screen.step(action, step._replace(reward=step.reward + 1))
    screen.close()
    envs.close()


def test_copies_do_not_diverge_with_sticky_actions_or_in_later_games(pong: Path) -> None:
    agent = load.load(pong)
    agent = agent._replace(
        config=a2c.Config(env="ALE/Breakout-v5", sticky_actions=0.25, image_size=42), spaces=None
    )
    envs, screen = watched(agent)
    envs.reset(2)
    screen.reset(2)
    random, games = np.random.default_rng(2), 0
    while games < 2:
        action = random.integers(0, 4, 1)
        screen.step(action, envs.step(action))  # raises if they diverge
        games += len(envs.pop_episodes())
    screen.close()
    envs.close()


def test_other_environments_render_themselves(drawn: Path, tmp_path: Path) -> None:
    played = play(drawn, tmp_path / "drawn.mp4", episodes=2)
    assert played.episodes == [Episode(60.0, 3)] * 2
    about, pictures = pictures_of(tmp_path / "drawn.mp4")
    assert about["fps"] == 10
    assert about["size"] == (402, 64)
    red = [int(picture[32, 200, 0]) for picture in pictures]
    assert np.allclose(red, [0, 60, 120, 180] * 2, atol=8)


def test_an_environment_from_a_callable_is_filmed(counting: Path, tmp_path: Path) -> None:
    played = play(counting, tmp_path / "drawn.mkv", env=lambda: toys.Drawn("rgb_array"))
    assert played.pictures == 4


def test_an_environment_that_crashes_in_every_episode_ends_the_play(counting: Path) -> None:
    with pytest.raises(TrainingError, match="crashed 10 times without a whole episode"):
        play(counting, env=toys.Fragile)


def test_a_picture_is_enlarged_by_whole_pixels_to_even_sides() -> None:
    picture = np.arange(210 * 160 * 3).astype(np.uint8).reshape(210, 160, 3)
    big = enlarged(picture)
    assert big.shape == (420, 320, 3)
    assert (big[::2, ::2] == picture).all()
    assert (big[1::2, 1::2] == picture).all()
    assert enlarged(np.zeros((3, 5, 3), np.uint8)).shape == (192, 320, 3)
    assert enlarged(np.zeros((63, 401, 3), np.uint8)).shape == (64, 402, 3)
    assert enlarged(np.zeros((400, 600, 3), np.uint8)).shape == (400, 600, 3)


# --- output ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--episodes", "2"], ["episode 1: 60 in 3 steps", "episode 2: 60 in 3 steps"]),
        (
            ["--episodes", "2", "--steps", "5"],
            [
                "episode 1: 60 in 3 steps",
                "stopped during an episode, after 5 steps in total",
            ],
        ),
        (
            ["--video", "{video}", "--greedy"],
            ["episode 1: 60 in 3 steps", "{video}: 4 frames, 0 s"],
        ),
    ],
)
def test_play_prints_scores_and_the_length_of_the_video(
    options: list[str], said: list[str], drawn: Path, tmp_path: Path
) -> None:
    video = tmp_path / "out.mp4"
    done = invoke("play", str(drawn), *(word.format(video=video) for word in options))
    assert done.output.splitlines() == [line.format(video=video) for line in said]


def test_the_same_seed_gives_the_same_game(pong: Path) -> None:
    agent = load.load(pong)
    envs = agent.environments(1)

    def actions(seed: int) -> list[int]:
        turns = agent.play(envs, envs.reset(seed), False, seed)
        return [next(turns)[0].item() for _ in range(20)]

    assert actions(1) == actions(1) != actions(2)
    envs.close()


# --- errors ---------------------------------------------------------------------------------------


def test_without_an_encoder_the_error_says_how_to_install_one(
    counting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(TrainingError, match=r"pip install '\.\[video\]'"):
        play(counting, tmp_path / "out.mp4", env=toys.Drawn)
    play(counting, env=toys.Counting)  # without a video none is needed


@pytest.mark.parametrize("env", [toys.Counting, toys.Drawn, toys.counting_vector])
def test_an_environment_without_pictures_is_refused(
    env: Any, counting: Path, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match=r"renders no pictures: its render\(\) must"):
        play(counting, tmp_path / "out.mp4", env=env)
    assert not (tmp_path / "out.mp4").exists()


@pytest.mark.usefixtures("nothing_left")
def test_a_video_that_cannot_be_written_raises_an_error_that_says_why(
    pong: Path, tmp_path: Path
) -> None:
    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(TrainingError, match=r"folder\.mp4 could not be written: .*directory"):
        play(pong, tmp_path / "folder.mp4", steps=3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--episodes", "0"], "episodes must be at least 1, not 0"),
        (["--seed", "-1"], "seed must be at least 0, not -1"),
        (["--video", "out.gif"], "a video's name ends in .mp4 or .mov or .mkv, not out.gif"),
        (["--video", "nowhere/out.mp4"], "there is no folder nowhere for out.mp4"),
        (["--checkpoint", "best"], "has no best.pt"),
    ],
)
def test_mistakes_on_the_command_line_are_reported(
    pong: Path, options: list[str], said: str
) -> None:
    done = invoke("play", str(pong), *options)
    assert done.exit_code == 2
    assert said in done.output
    assert "Traceback" not in done.output
