"""In what numbers networks compute: float32, or bfloat16 where that is faster.

bfloat16 has float32's range and 8 bits of its 24; parameters, losses, targets and the optimiser
stay in float32 (Micikevicius et al. 2018, https://arxiv.org/abs/1710.03740, but without their
scaling of losses, which bfloat16 does not need).
"""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from remotely_rl.errors import TrainingError, nearest

CHOICES = ("auto", "float32", "bfloat16")

# What a CPU multiplies bfloat16 with, as torch.cpu.get_capabilities() calls it; without, each
# product would be converted to float32 and back.
INSTRUCTIONS = ("amx_bf16", "avx512_bf16")
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def check(choice: str) -> None:
    """Raises TrainingError for what is no choice."""
    if choice not in CHOICES:
        raise TrainingError(
            f"precision must be {', '.join(CHOICES)}, not {choice!r}{nearest(choice, CHOICES)}"
        )


def of(choice: str, model: nn.Module, device: torch.device) -> torch.dtype:
    """The numbers that a model computes in: of `auto`, the faster on this machine.

    Networks without convolutions are small: they lose more by conversions than they gain, on a
    GPU too.  And actors, who are on CPUs, would compute them in float32: what a learner in
    bfloat16 says of their actions differs by some thousandths of a nat from what they said, where
    an update of PPO is to move the policy by ten.
    """
    if choice != "auto":
        return torch.bfloat16 if choice == "bfloat16" else torch.float32
    if not any(isinstance(part, CONVOLUTIONS) for part in model.modules()):
        return torch.float32
    has = torch.cpu.get_capabilities()
    fast = device.type == "cuda" or any(has.get(name) for name in INSTRUCTIONS)
    return torch.bfloat16 if fast else torch.float32


def computing(dtype: torch.dtype, device: torch.device) -> AbstractContextManager[Any]:
    """Within it, networks compute so; each parameter is converted once, so none may change."""
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16)
