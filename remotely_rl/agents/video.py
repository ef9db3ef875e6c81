"""Playing of a trained agent, with an optional video.

An Atari agent sees small, gray, stacked images, unsuitable for a video.  So there are two copies of
the game, one for the agent and one for the video: they start from the same seed and receive the
same actions, and their rewards must agree in every step.  All other environments render themselves
(`render_mode="rgb_array"`).
"""

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from remotely_rl import networks
from remotely_rl.acting.evaluation import check_at_least, with_progress
from remotely_rl.acting.policy import Trained, one_thread
from remotely_rl.agents import load
from remotely_rl.config import Common
from remotely_rl.environments import (
    Environments,
    Episode,
    Source,
    Step,
    Wrapper,
    is_atari,
    name_of,
)
from remotely_rl.environments.atari import observes_ram
from remotely_rl.errors import TrainingError
from remotely_rl.runs import videos
from remotely_rl.runs.training import Train
from remotely_rl.supervision.crashes import CrashesInARow

ATARI_FPS = 15.0  # 60 frames per second, four per step
DEFAULT_FPS = 30.0  # of environments without `render_fps`

Picture = NDArray[np.uint8]  # [height, width, 3], red, green and blue


class Screen(Protocol):
    """Pictures of one environment.  `fps` is the rate at which the game runs in real time."""

    fps: float

    def reset(self, seed: int) -> Picture:
        """Return the picture after a reset with `seed`; reset the agent's environment first."""
        ...

    def step(self, action: NDArray[Any], step: Step) -> Picture:
        """Return the picture after `action`, which led to `step` in the agent's environment."""
        ...

    def close(self) -> None: ...


class SecondCopy:
    """Atari: the same game in its original colours and size, in lockstep with the agent's."""

    fps = ATARI_FPS

    def __init__(self, envs: Environments, env_id: str, config: Common):
        from ale_py.vector_env import AtariVectorEnv  # noqa: PLC0415 - few need it

        self._actions = envs.actions
        self._game = AtariVectorEnv(
            gymnasium.spec(env_id).kwargs["game"],
            1,
            num_threads=1,
            img_height=210,
            img_width=160,
            grayscale=False,
            stack_num=1,
            repeat_action_probability=config.sticky_actions,
            reward_clipping=False,
            **config.env_kwargs,
        )

    def reset(self, seed: int) -> Picture:
        obs, _ = self._game.reset(seed=seed)
        return np.array(obs[0, -1])

    def step(self, action: NDArray[Any], step: Step) -> Picture:
        """Step the copy.  Raises TrainingError if the two copies diverge."""
        obs, *outcome, _ = self._game.step(self._actions.to_environment(action))
        seen = (step.reward, step.terminated, step.truncated)
        if any(here[0] != there[0] for here, there in zip(outcome, seen, strict=True)):
            raise TrainingError(
                "the filmed copy of the game diverged from the agent's: the video would be wrong"
            )
        return np.array(obs[0, -1])

    def close(self) -> None:
        self._game.close()


class OwnPictures:
    """Other environments: the agent's environment renders itself."""

    def __init__(self, envs: Environments, name: str):
        self._vector = envs.vector
        self._name = name
        self.fps = float(self._vector.metadata.get("render_fps") or DEFAULT_FPS)

    def reset(self, seed: int) -> Picture:
        return self._picture()

    def step(self, action: NDArray[Any], step: Step) -> Picture:
        return self._picture()

    def close(self) -> None:
        """Do nothing: the caller closes the agent's environment."""

    def _picture(self) -> Picture:
        """Render.  Raises TrainingError if there is no picture."""
        try:
            drawn = (self._vector.render() or [None])[0]
        except (gymnasium.error.Error, ImportError) as error:
            raise TrainingError(f"{self._name} cannot render: {error}") from error
        except NotImplementedError:
            drawn = None
        picture = np.asarray(drawn)
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise TrainingError(
                f"{self._name} renders no pictures: its render() must return uint8"
                " [height, width, 3], as with render_mode='rgb_array'"
            )
        return picture


def watched(agent: Trained) -> tuple[Environments, Screen]:
    """Make one of an agent's environments, and a screen that shows it."""
    source = agent.config.env
    envs = agent.environments(1)
    if not isinstance(source, str):
        return envs, OwnPictures(envs, name_of(source))
    if is_atari(source) and not observes_ram(gymnasium.spec(source)):
        return envs, SecondCopy(envs, source, agent.config)
    envs.close()
    envs = agent.environments(1, render_mode="rgb_array")
    return envs, OwnPictures(envs, source)


# H.264 in one of these plays everywhere.
SUFFIXES = (".mp4", ".mov", ".mkv")
MIN_WIDTH = 320

# x264's constant rate factor, 0 being lossless: edges stay sharp, a minute of Pong takes 140 kB.
QUALITY = "15"


class Played(NamedTuple):
    """Finished games, the number of steps played, and the length of the video."""

    episodes: list[Episode]
    steps: int
    pictures: int = 0
    fps: float = 0.0


class Video:
    """An H.264 file, written frame by frame; complete when its `with` block ends."""

    def __init__(self, path: Path, screen: Screen):
        """Raise TrainingError if there is no encoder, or no folder for `path`."""
        if path.suffix.lower() not in SUFFIXES:
            raise TrainingError(f"a video's name ends in {' or '.join(SUFFIXES)}, not {path.name}")
        if not path.parent.is_dir():
            raise TrainingError(f"there is no folder {path.parent} for {path.name}")
        self._path = path
        self._screen = screen
        self._ffmpeg = _find_ffmpeg()
        self._encoder: subprocess.Popen[bytes] | None = None
        self._shape: tuple[int, ...] = ()
        self.fps = screen.fps
        self.pictures = 0

    def __enter__(self) -> "Video":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._encoder is None:
            return
        _, said = self._encoder.communicate()
        if self._encoder.returncode and (error is None or isinstance(error, BrokenPipeError)):
            why = said.decode(errors="replace").strip()
            raise TrainingError(f"{self._path} could not be written: {why}") from error

    def reset(self, seed: int) -> None:
        """Add the picture after a reset."""
        self._add(self._screen.reset(seed))

    def step(self, action: NDArray[Any], step: Step) -> None:
        """Add the picture after a step."""
        self._add(self._screen.step(action, step))

    def _add(self, picture: Picture) -> None:
        big = enlarged(picture)
        if self._encoder is None:
            self._shape, self._encoder = big.shape, self._begin(*big.shape[:2])
        if big.shape != self._shape:
            raise TrainingError(
                "the environment's pictures change their size: a video needs a constant size"
            )
        assert self._encoder.stdin is not None
        self._encoder.stdin.write(big.tobytes())
        self.pictures += 1

    def _begin(self, height: int, width: int) -> subprocess.Popen[bytes]:
        pictures = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
        # Every player supports yuv420p.
        file = ["-c:v", "libx264", "-crf", QUALITY, "-pix_fmt", "yuv420p", f"file:{self._path}"]
        return subprocess.Popen(
            [self._ffmpeg, "-v", "error", "-y", *pictures, "-r", f"{self.fps:g}", "-i", "-", *file],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches only this process, which ends ffmpeg cleanly
        )


def _find_ffmpeg() -> str:
    try:
        import imageio_ffmpeg  # noqa: PLC0415 - an extra that few need

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except ImportError:
        raise TrainingError(
            "a video needs an encoder: pip install '.[video]' in a checkout of remotely"
        ) from None
    except RuntimeError as error:
        raise TrainingError(f"a video needs an encoder: {error}") from error


def enlarged(picture: Picture) -> Picture:
    """Scale a picture up by whole pixels to at least 320 wide, with even sides for the encoder."""
    times = -(-MIN_WIDTH // picture.shape[1])
    big = picture.repeat(times, 0).repeat(times, 1)
    height, width = big.shape[:2]
    return np.pad(big, ((0, height % 2), (0, width % 2), (0, 0)), "edge")


def play(
    run: str | Path,
    video: str | Path | None = None,
    episodes: int = 1,
    greedy: bool = False,
    which: str = "last",
    *,
    seed: int = 1000,
    model: networks.ModelSource | None = None,
    env: Source | None = None,
    algorithm: Train[Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Wrapper | str] | None = None,
    steps: int | None = None,
) -> Played:
    """Play whole games with the agent in a run folder, and film them if `video` is a path.

    See `agent.load` for the other arguments; `steps` limits the steps, and may stop in the middle
    of a game.  Raises TrainingError, also for an environment that cannot render.
    """
    check_at_least(1, episodes=episodes, **({} if steps is None else {"steps": steps}))
    check_at_least(0, seed=seed)
    agent = load.load(run, which, model, env, algorithm, env_kwargs, wrappers)
    finished: list[Episode] = []
    with ExitStack() as stack:
        film = None
        if video is None:
            envs = stack.enter_context(closing(agent.environments(1)))
        else:
            envs, screen = watched(agent)
            stack.callback(envs.close)
            stack.callback(screen.close)
            film = stack.enter_context(Video(Path(video), screen))
        stack.enter_context(one_thread())
        obs = envs.reset(seed)
        if film is not None:
            film.reset(seed)
        crashes = CrashesInARow()
        turns = with_progress(
            agent.play(envs, obs, greedy, seed, crashes.add),
            lambda turn: f"{len(finished):,} of {episodes:,} episodes have ended in {turn:,} steps",
        )
        for turn, (action, step) in enumerate(turns, 1):
            if film is not None:
                film.step(action, step)
            for number, episode in envs.pop_episodes_by_environment():
                crashes.ended(number)
                finished.append(episode)
            if len(finished) >= episodes or turn == steps:
                break
    if video is not None and agent.env_steps is not None:
        videos.describe(Path(video), agent.env_steps, [episode.score for episode in finished])
    return Played(finished, turn, *((film.pictures, film.fps) if film else ()))
