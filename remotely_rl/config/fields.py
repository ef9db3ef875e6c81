"""The fields that several algorithms have: of each its type, its line of help, and its bounds.

A Config declares which of these it has, with defaults of its own:

    gae_lambda: fields.GaeLambda = 0.95

So an algorithm's file says all that can be set there, and each field is described once.
"""

from typing import Annotated

from remotely_rl.environments import Source
from remotely_rl.functions.distributions import MAX_LOG_STD, MIN_LOG_STD
from remotely_rl.settings import COUNT, FRACTION, LENGTH, NOT_NEGATIVE, Range

Env = Annotated[
    Source, "Gymnasium id, envpool:NAME, or a callable that makes environments: FILE.py:NAME"
]

# --- sampling -------------------------------------------------------------------------------------

RolloutSteps = Annotated[int | None, "T, steps of each environment in a trajectory", COUNT]
Arrivals = Annotated[
    bool, "actors are processes that dial in (remotely_rl.dial_in); further ones may join"
]  # fmt: skip
Sampling = Annotated[
    str, "where actions are computed: local, central, alternating; auto: central on a GPU, else"
         " local"
]  # fmt: skip


def one_way_to_sample(why: str) -> dict[str, str]:
    """What a Config lacks that cannot be sampled in other ways: `Common.lacks`."""
    can = "a2c, ppo, appo, impala, dqn, c51, qr_dqn, rainbow, sac and td3 have the choice"
    return {"sampling": f"{why}; {can}"}


Resets = Annotated[
    str, "when the next episode begins: at_once, or in_pause, after the update"
]  # fmt: skip
Overlap = Annotated[bool, "sample the next round while learning"]
FreeActors = Annotated[
    int, "processes that sample; 0: as many as the cluster has room for, machines that join later"
         " included", NOT_NEGATIVE
]  # fmt: skip
BatchTrajectories = Annotated[int, "trajectories in an update", COUNT]
Ahead = Annotated[int, "trajectories that an actor may sample before one is learnt from", COUNT]
MaxStaleness = Annotated[
    int | None, "most updates that experience may be behind; 0: rounds, none: no limit",
    NOT_NEGATIVE,
]  # fmt: skip
ExploreSteps = Annotated[
    float, "steps, or fraction of total_steps, over which epsilon falls from 1, after learn_from",
    LENGTH,
]  # fmt: skip
PlayEpsilon = Annotated[
    float, "probability of a random action when a trained agent plays by sampling", FRACTION
]

# --- returns --------------------------------------------------------------------------------------

Gamma = Annotated[float, "discount of a reward one step later", FRACTION]
GaeLambda = Annotated[
    float, "lambda of GAE; 1 uses whole returns, 0 the value function alone", FRACTION
]
NormalizeValues = Annotated[
    bool | None, "learn values in units of their running mean and deviation; none: where rewards"
                 " are not clipped"
]  # fmt: skip
NormalizeAdvantage = Annotated[bool, "scale advantages to mean 0 and standard deviation 1"]

# --- losses and steps -----------------------------------------------------------------------------

LearningRate = Annotated[float, "Adam's learning rate at the start", NOT_NEGATIVE]
LearningRateEnd = Annotated[
    float | None,
    "learning rate at the end of the schedule; none: {cls.rate_end:g}, or learning_rate if that is"
    " lower",
    NOT_NEGATIVE,
]
LearningRateEndOrSame = Annotated[
    float | None, "learning rate at the end of the schedule; none: as at the start", NOT_NEGATIVE
]
RateOrSteered = Annotated[
    float | None, "Adam's learning rate at the start; none: 0.001, steered by target_kl",
    NOT_NEGATIVE,
]  # fmt: skip
TargetKl = Annotated[
    float | None, "steer the rate to this KL of an update; 0: anneal it; none: 0.01, or 0 if a"
                  " learning_rate is given", NOT_NEGATIVE
]  # fmt: skip
RateRule = Annotated[
    str, "how learning rates follow {cls.rate_follows}: none, sqrt or linear"
]  # fmt: skip
MaxGradNorm = Annotated[
    float, "clip the gradient's norm over all parameters to this; 0: never", NOT_NEGATIVE
]
ValueCoef = Annotated[float, "value loss coefficient", NOT_NEGATIVE]
EntropyCoef = Annotated[float, "entropy coefficient at the start", NOT_NEGATIVE]
EntropyCoefEnd = Annotated[float, "entropy coefficient at the end of the schedule", NOT_NEGATIVE]
ClipRange = Annotated[
    float, "clip the ratio of an action's probabilities to 1 - this and 1 + this", NOT_NEGATIVE
]
ClipRangeOrNone = Annotated[
    float, "clip the ratio of an action's probabilities to 1 - this and 1 + this; 0: use the"
           " policy gradient", NOT_NEGATIVE
]  # fmt: skip
Epochs = Annotated[int, "times that an update goes over its batch", COUNT]
Minibatches = Annotated[int, "parts of the batch, with an optimizer step each", COUNT]
Lstm = Annotated[int, "units of an LSTM before the heads; 0: none", NOT_NEGATIVE]

# --- the network ----------------------------------------------------------------------------------

Hidden = Annotated[
    str | tuple[int, ...] | None, "units of each fully connected layer, as 256,256; none: 64,64"
    " for vectors, 512 or 256 after convolutions"
]  # fmt: skip
Activation = Annotated[
    str | None, "tanh, relu, elu or silu; none: tanh for vectors, relu in convolutional networks"
]
Network = Annotated[
    str, "for images: nature, small, tiny, resnet (IMPALA's), or mlp; auto: as fits their size"
]
NormalizeObservations = Annotated[
    bool, "normalize observations by running statistics; no: for scaled or one-hot ones"
]
LogStdStart = Annotated[
    float, "continuous actions: log standard deviation of the policy at the start",
    Range(MIN_LOG_STD, MAX_LOG_STD),
]  # fmt: skip

# --- a replay -------------------------------------------------------------------------------------

ReplayRows = Annotated[int, "steps that the replay holds, of all environments", COUNT]
LearnFrom = Annotated[int, "steps of random play before the first update", COUNT]
ReplayRatio = Annotated[
    float, "times that a step is learnt from, on average; batch_size: an update for each step",
    NOT_NEGATIVE,
]  # fmt: skip
BatchSize = Annotated[int, "steps that an update draws from the replay", COUNT]
NStep = Annotated[int, "rewards in a target before it bootstraps", COUNT]
PrioritizedAlpha = Annotated[
    float, "draw steps by their last error to this power; 0: all alike", FRACTION
]
PrioritizedBeta = Annotated[
    float, "exponent of the weights that correct for that; rises to 1 by the end of the schedule",
    FRACTION,
]  # fmt: skip
Tau = Annotated[float, "how far the targets move in an update", FRACTION]
SaveReplay = Annotated[bool, "save the replay beside each checkpoint, to resume with it"]

# --- parameters shared by a sync rule -------------------------------------------------------------

Sync = Annotated[
    str, "rule by which workers share parameters (`remotely-rl rules`); rate= replaces"
         " learning_rate"
]  # fmt: skip
Accumulate = Annotated[int, "segments whose gradients a worker sums up for a push", COUNT]
Optimizer = Annotated[
    str, "of the shared parameters, or of workers that step by themselves: rmsprop, adam or sgd"
]
RmspropDecay = Annotated[float, "decay of the mean of squared gradients", FRACTION]
RmspropEpsilon = Annotated[float, "added to the root of that mean", NOT_NEGATIVE]

# --- several learners -----------------------------------------------------------------------------

Learners = Annotated[
    int, "processes that learn, on a device each and with actors each", COUNT
]  # fmt: skip
LearnersShare = Annotated[
    str, "what learners share: gradients, whose mean all step by, or store, which each steps alone"
]  # fmt: skip
StepsPerPush = Annotated[
    int, "optimizer steps of a learner between its pushes to the store that learners share",
    Range(1, 4),
]  # fmt: skip


def one_learner(why: str) -> dict[str, str]:
    """What a Config lacks that cannot have several learners: `Common.lacks`."""
    can = "a2c, ppo, appo, dqn, c51, qr_dqn and rainbow can have several"
    return dict.fromkeys(("learners", "learners_share"), f"{why}; {can}")


# --- machine --------------------------------------------------------------------------------------

Device = Annotated[str, "where the learner computes: auto, cpu, cuda or cuda:N"]
LearnerThreads = Annotated[
    int, "torch threads of a learner on the CPU; 0: as fits the algorithm", NOT_NEGATIVE
]
