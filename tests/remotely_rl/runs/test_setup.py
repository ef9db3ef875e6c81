"""The learner of a run, made from a probe of its environment."""

import sys
from pathlib import Path

import pytest
import torch

from remotely_rl import a2c, networks
from remotely_rl.runs import training
from tests.remotely_rl import toys

pytestmark = pytest.mark.usefixtures("no_curve")


@pytest.mark.usefixtures("local")
def test_statistics_begin_with_random_play_where_there_is_something_to_normalise() -> None:
    config = a2c.Config(env=toys.Counting)
    learner = training.make_learner(config)
    assert learner.model.state_dict()["normalizer.count"].item() > 0

    class Plain(networks.MLP):
        def __init__(self, observation_shape: tuple[int, ...], outputs: int):
            super().__init__(observation_shape, outputs)
            self.normalizer = torch.nn.Identity()

    plain = training.make_learner(config, Plain)
    assert not any("count" in name for name in plain.model.state_dict())


@pytest.mark.parametrize(("source", "is_there"), [("", True), ("raise OSError", False)])
def test_what_learning_alone_needs_is_imported_beside_and_its_failure_is_not_told_there(
    source: str, is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_late.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(training, "IMPORTED_LATE", "imported_late")
    training.import_late().join()
    assert (sys.modules.pop("imported_late", None) is not None) == is_there
