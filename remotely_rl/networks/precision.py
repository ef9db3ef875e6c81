"""The precision of networks: float32, or bfloat16 where that is faster.

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

# CPU instructions that multiply bfloat16, as named by torch.cpu.get_capabilities().  A CPU without
# them converts each product to float32 and back.
INSTRUCTIONS = ("amx_bf16", "avx512_bf16")
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def check(choice: str) -> None:
    """Raise TrainingError if `choice` is not one of CHOICES."""
    if choice not in CHOICES:
        raise TrainingError(
            f"precision must be {', '.join(CHOICES)}, not {choice!r}{nearest(choice, CHOICES)}"
        )


def of(choice: str, model: nn.Module, device: torch.device) -> torch.dtype:
    """Return the dtype in which a model computes; for `auto`, the faster one on this machine.

    `auto` is float32 for networks without convolutions.  These are small, and conversions cost more
    than bfloat16 gains, on a GPU too.  Besides, their actors compute in float32 on CPUs, and the
    log-probabilities of a learner in bfloat16 would differ from theirs by thousandths of a nat,
    while an update of PPO should move the policy by ten thousandths.
    """
    if choice != "auto":
        return torch.bfloat16 if choice == "bfloat16" else torch.float32
    if not any(isinstance(part, CONVOLUTIONS) for part in model.modules()):
        return torch.float32
    has: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # not in torch 2.8
    fast = device.type == "cuda" or any(has.get(name) for name in INSTRUCTIONS)
    return torch.bfloat16 if fast else torch.float32


def computing(dtype: torch.dtype, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which networks compute in `dtype`.

    It converts each parameter once, so parameters must not change inside.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16)


def recording(dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Return the context for recording a CUDA graph, each pass of which converts parameters."""
    return torch.autocast(
        "cuda", torch.bfloat16, enabled=dtype == torch.bfloat16, cache_enabled=False
    )
