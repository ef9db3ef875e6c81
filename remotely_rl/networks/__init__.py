"""Networks that map a batch of observations to `(policy, value)`.

    obs     [N, ...]      uint8 images [N, channels, height, width], float32, and so on; or a dict
                          or a tuple of these (`environments/observations.py`)
    policy  [N, outputs]  parameters of the action distribution (`environments/action_spaces.py`);
                          for discrete actions, their logits
    value   [N]           V of the observation

Algorithms need nothing else from a model.  Your own may be any `torch.nn.Module` that does this:
pass a class or function of `(observation_shape, outputs)`, or an instance.  The shape of a nested
observation is nested too: `{"image": (3, 84, 84), "speed": (1,)}`.

A recurrent model also has a method `initial_state(count)`, which returns float32 [count, S], and
maps sequences of steps:

    obs [T, B, ...], state [B, S], begins [T, B]  ->  policy [T, B, outputs], value [T, B],
                                                      state [B, S]

`begins` is true for the first observation of an episode: there the state is reset to the initial
one.

The modules:

    NatureCNN, ..., ResNet    cnn.py            Recurrent, RecurrentMLP    recurrent.py
    MLP                       mlp.py            Normalizer, Scaler         normalizer.py
    architecture settings     architecture.py   float32 or bfloat16        precision.py
    nested observations       encoders.py       action masks               masked.py
    Q-networks, noisy layers  q_network.py      state_dict and LSTM state  state.py
    a model for each agent    per_agent.py      default and own models     factory.py
    batch and layer norm      renorm.py
"""

from remotely_rl.networks.architecture import (
    BATCH,
    LAYER,
    NONE,
    Architecture,
    check_norm,
    hidden_of,
)
from remotely_rl.networks.cnn import ActorCritic, NatureCNN, ResNet, SmallCNN, TinyCNN
from remotely_rl.networks.encoders import check_has_images, encoder_of
from remotely_rl.networks.factory import ModelSource, build, default_network, with_masks
from remotely_rl.networks.layers import FreeOutputs, start_policy
from remotely_rl.networks.masked import MaskedPolicy, masked
from remotely_rl.networks.mlp import MLP
from remotely_rl.networks.normalizer import (
    UPDATE_EVERY,
    Normalizer,
    Scaler,
    has_normalizer,
    load_statistics,
    statistics_of,
    update_normalizers,
)
from remotely_rl.networks.per_agent import PerAgent, for_each_agent
from remotely_rl.networks.policy_and_critics import (
    Critics,
    CriticsOfAll,
    PolicyAndCritics,
    PolicyNetwork,
    SoftActorCritic,
    frozen,
)
from remotely_rl.networks.q_network import QNetwork, build_q_network, make_noisy, resample
from remotely_rl.networks.recurrent import Recurrent, RecurrentMLP
from remotely_rl.networks.renorm import BatchRenorm, batch_statistics, renorms_of
from remotely_rl.networks.state import (
    State,
    arrays_of,
    copy_to_cpu,
    initial_state,
    is_recurrent,
    load_state,
    state_of,
    unroll,
)

__all__ = [
    "arrays_of",
    "BATCH",
    "LAYER",
    "MLP",
    "NONE",
    "UPDATE_EVERY",
    "ActorCritic",
    "Architecture",
    "BatchRenorm",
    "Critics",
    "CriticsOfAll",
    "FreeOutputs",
    "MaskedPolicy",
    "ModelSource",
    "NatureCNN",
    "Normalizer",
    "PerAgent",
    "PolicyAndCritics",
    "PolicyNetwork",
    "QNetwork",
    "Recurrent",
    "RecurrentMLP",
    "ResNet",
    "Scaler",
    "SmallCNN",
    "SoftActorCritic",
    "State",
    "TinyCNN",
    "batch_statistics",
    "build",
    "build_q_network",
    "check_has_images",
    "check_norm",
    "copy_to_cpu",
    "default_network",
    "encoder_of",
    "for_each_agent",
    "frozen",
    "has_normalizer",
    "hidden_of",
    "initial_state",
    "is_recurrent",
    "load_state",
    "load_statistics",
    "make_noisy",
    "masked",
    "renorms_of",
    "resample",
    "start_policy",
    "state_of",
    "statistics_of",
    "unroll",
    "update_normalizers",
    "with_masks",
]
