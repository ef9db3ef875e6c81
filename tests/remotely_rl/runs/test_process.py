"""What a run changes of its process: it is put back, and nobody else's changes matter."""

import contextlib
import dataclasses
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from remotely_rl import networks, ppo
from remotely_rl.errors import TrainingError
from remotely_rl.runs import training
from remotely_rl.runs.session import Process
from tests.remotely_rl import toys

pytestmark = pytest.mark.usefixtures("no_curve")

CONFIG = ppo.Config(
    env=toys.Guess, actors=2, envs_per_actor=4, rollout_steps=8, total_steps=60, learner_threads=2,
    device="cpu", log_interval_s=1e6, checkpoint_interval_s=1e6,
)  # fmt: skip


def wide(observation_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Large enough for its sums to depend on the number of threads."""
    network = networks.MLP(observation_shape, outputs)
    network.policy_body = nn.Sequential(nn.Linear(observation_shape[0], 3000), nn.Tanh())
    network.policy = nn.Linear(3000, outputs)
    return network


@pytest.mark.usefixtures("local")
def test_a_run_puts_back_threads_random_numbers_and_handlers(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    handler = signal.getsignal(signal.SIGINT)
    random = torch.get_rng_state()
    ppo.train(dataclasses.replace(CONFIG, learner_threads=1), run=tmp_path / "run")
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.get_rng_state(), random)
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_run_that_cannot_begin_puts_them_back_too(tmp_path: Path) -> None:
    random = torch.get_rng_state()
    (tmp_path / "taken").touch()
    with pytest.raises(TrainingError, match="exists already"):
        training.begin("ppo", ppo.Config, CONFIG, run=tmp_path)
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.usefixtures("local")
def test_runs_of_one_process_repeat_bit_by_bit_from_the_first_on(tmp_path: Path) -> None:
    for number, threads in enumerate((2, 1, 2)):
        torch.set_num_threads(threads)  # what the user, or the run before, had
        torch.rand(number)
        ppo.train(CONFIG, wide, run=tmp_path / str(number))
    for number in (1, 2):
        toys.assert_same_bits(tmp_path / "0", tmp_path / str(number))


@pytest.mark.usefixtures("local")
def test_runs_in_threads_side_by_side_are_those_that_they_are_alone(tmp_path: Path) -> None:
    ppo.train(CONFIG, run=tmp_path / "alone")

    def train(number: int) -> None:
        ppo.train(CONFIG, run=tmp_path / str(number))

    threads = [threading.Thread(target=train, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number in range(3):
        toys.assert_same_bits(tmp_path / "alone", tmp_path / str(number))


def test_the_first_signal_asks_and_the_second_interrupts() -> None:
    process = Process()
    process.listen()
    try:
        signal.raise_signal(signal.SIGTERM)
        assert process.asked_to_stop == "stopped by SIGTERM"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        process.restore()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_run_in_another_thread_stops_if_the_main_thread_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Process] = []
    thread = threading.Thread(target=lambda: made.extend(Process() for _ in range(2)))
    thread.start()
    thread.join()
    (waited_for, left), here = made, Process()
    with contextlib.suppress(KeyboardInterrupt):
        try:
            raise KeyboardInterrupt  # Ctrl-C: the main thread waits for the others as it unwinds
        finally:
            assert here.asked_to_stop == ""  # its own handler tells
            assert waited_for.asked_to_stop == "stopped by SIGINT"
    assert left.asked_to_stop == ""
    monkeypatch.setattr(threading, "main_thread", lambda: thread)  # which is over
    assert left.asked_to_stop == ""
    monkeypatch.setattr(sys, "last_value", KeyboardInterrupt(), raising=False)
    assert left.asked_to_stop == "stopped by SIGINT"
