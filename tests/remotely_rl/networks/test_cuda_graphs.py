"""CUDA graphs: which models are recorded, and, on a GPU, that recording does not change results."""

from typing import Any

import pytest
import torch
from torch import nn

from remotely_rl import networks
from remotely_rl.networks import cuda_graphs, precision

SHAPE = (4, 84, 84)
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Own(nn.Module):
    """A user's model, whose Python code may do anything."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = networks.NatureCNN(SHAPE, 6)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        policy, value = self.inner(obs)
        return policy, value


def with_dropout() -> nn.Module:
    model = networks.NatureCNN(SHAPE, 6)
    body: Any = model.body
    body.append(nn.Dropout())
    return model


def images(rows: int) -> torch.Tensor:
    return torch.randint(0, 255, (rows, *SHAPE), dtype=torch.uint8, device="cuda")


@pytest.mark.parametrize(
    ("model", "device", "is_recorded"),
    [
        (networks.NatureCNN(SHAPE, 6), "cuda", True),
        (networks.MLP((4,), 2), "cuda", True),
        (networks.NatureCNN(SHAPE, 6), "cpu", False),
        (networks.RecurrentMLP((4,), 2), "cuda", False),
        (Own(), "cuda", False),
        (with_dropout(), "cuda", False),
    ],
)
def test_only_deterministic_networks_of_this_package_are_recorded(
    model: nn.Module, device: str, is_recorded: bool
) -> None:
    assert cuda_graphs.can_record(model, torch.device(device)) is is_recorded


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recorded_inference_follows_the_current_parameters(dtype: torch.dtype) -> None:
    model = networks.NatureCNN(SHAPE, 6).cuda()
    recorded = cuda_graphs.Inference(model, dtype)
    with torch.inference_mode():
        for _ in range(3):
            obs = images(16)
            with precision.computing(dtype, torch.device("cuda")):
                found = recorded(obs)
            with precision.computing(dtype, torch.device("cuda")):
                expected = model(obs)
            for one, other in zip(found, expected, strict=True):
                assert one.device.type == "cpu"
                torch.testing.assert_close(one, other.float().cpu(), rtol=2e-2, atol=2e-2)
            networks.load_state(
                model, {name: 1.1 * part for name, part in networks.state_of(model).items()}
            )
            with torch.inference_mode(False):
                networks.update_normalizers(model, images(70))
    assert recorded.is_recorded
