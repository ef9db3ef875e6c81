"""What the networks for images have in common."""

import torch

from remotely_rl import networks


def test_a_new_policy_is_close_to_uniform() -> None:
    model = networks.SmallCNN((4, 42, 42), 6)
    obs = torch.randint(0, 256, (8, 4, 42, 42), dtype=torch.uint8)
    with torch.no_grad():
        policy, _ = model(obs)
    assert (policy.softmax(-1) - 1 / 6).abs().max() < 0.05
