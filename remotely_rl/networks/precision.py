"""The precision that networks compute in: float32, or bfloat16 where that is faster.

bfloat16 has the range of float32, and 8 of its 24 bits of precision.  Parameters, losses, targets
and the optimizer's state stay in float32 (Micikevicius et al. 2018,
https://arxiv.org/abs/1710.03740, without their loss scaling, which bfloat16 does not need).
"""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from remotely_rl.errors import TrainingError, nearest

CHOICES = ("auto", "float32", "bfloat16")

# The instructions by which a CPU multiplies bfloat16, as torch.cpu.get_capabilities() names them.
# A CPU without them converts each product to float32 and back.
INSTRUCTIONS = ("amx_bf16", "avx512_bf16")
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def check(choice: str) -> None:
    """Raise TrainingError if `choice` is not one of CHOICES."""
    if choice not in CHOICES:
        raise TrainingError(
            f"precision must be {', '.join(CHOICES)}, not {choice!r}{nearest(choice, CHOICES)}"
        )


def of(choice: str, model: nn.Module, device: torch.device) -> torch.dtype:
    """Return the dtype that a model computes in; for `auto`, the faster one on this machine.

    `auto` is float32 for networks without convolutions.  These are small: conversions cost them
    more than bfloat16 gains, on a GPU too.  Besides, actors run on CPUs and would compute in
    float32.  The log-probabilities of a learner in bfloat16 then differ from theirs by some
    thousandths of a nat, where an update of PPO is meant to move the policy by ten thousandths.
    """
    if choice != "auto":
        return torch.bfloat16 if choice == "bfloat16" else torch.float32
    if not any(isinstance(part, CONVOLUTIONS) for part in model.modules()):
        return torch.float32
    has: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # torch 2.8 does not tell
    fast = device.type == "cuda" or any(has.get(name) for name in INSTRUCTIONS)
    return torch.bfloat16 if fast else torch.float32


def computing(dtype: torch.dtype, device: torch.device) -> AbstractContextManager[Any]:
    """Make networks compute in `dtype`, as a context manager.

    It converts each parameter once, so no parameter may change inside.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16)


def recording(dtype: torch.dtype) -> AbstractContextManager[Any]:
    """The same while a CUDA graph is recorded, in which each pass is to convert the parameters."""
    return torch.autocast(
        "cuda", torch.bfloat16, enabled=dtype == torch.bfloat16, cache_enabled=False
    )
