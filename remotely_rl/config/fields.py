"""Fields that several algorithms share: type, line of help and bounds of each.

A Config declares the fields that it has, with its own defaults:

    gae_lambda: fields.GaeLambda = 0.95

So an algorithm's file lists all its settings, and each field is described once.
"""

from typing import Annotated

from remotely_rl.environments import Source
from remotely_rl.functions.distributions import MAX_LOG_STD, MIN_LOG_STD
from remotely_rl.settings import COUNT, FRACTION, LENGTH, NOT_NEGATIVE, Auto, Range

Env = Annotated[
    Source, "Gymnasium id, envpool:NAME, or FILE.py:NAME of a callable that makes environments"
]
EvaluateEnv = Annotated[
    Source | None, "environment that evaluations play, as env; none: that of training"
]

# --- sampling -------------------------------------------------------------------------------------

Actors = Annotated[
    int,
    "processes that sample; auto: as many as this machine has cores for, which share the"
    " environments of 2",
    COUNT,
]
AUTO_OF_2 = Auto(2)

RolloutSteps = Annotated[int | None, "T, steps of each environment in a trajectory", COUNT]
Arrivals = Annotated[
    bool, "actors are processes that dial in (remotely_rl.dial_in); more may join at any time"
]
Sampling = Annotated[
    str,
    "where actions are computed: local, central or alternating; auto: by the machine",
]


def one_way_to_sample(why: str) -> dict[str, str]:
    """Return `Common.lacks` of an algorithm that samples in one way only."""
    can = "a2c, ppo, pqn, appo, impala, dqn, c51, qr_dqn, rainbow, sac, td3 and crossq"
    return {"sampling": f"{why}; {can} have the choice"}


Resets = Annotated[
    str, "when an environment resets: at_once, or in_pause, while the learner learns"
]
Overlap = Annotated[bool, "sample the next round while learning"]
FreeActors = Annotated[
    int,
    "processes that sample; 0: as many as the cluster has room for, also on machines that join"
    " later",
    NOT_NEGATIVE,
]
BatchTrajectories = Annotated[int, "trajectories in a batch", COUNT]
Ahead = Annotated[int, "maximum trajectories of an actor that wait to be learnt from", COUNT]
MaxStaleness = Annotated[
    int | None,
    "maximum age of experience in updates; 0: synchronous rounds, none: no limit",
    NOT_NEGATIVE,
]
ExploreSteps = Annotated[
    float,
    "steps, or fraction of total_steps, over which epsilon falls from 1, after learn_from",
    LENGTH,
]
PlayEpsilon = Annotated[
    float, "probability of a random action when a trained agent plays by sampling", FRACTION
]

# --- returns --------------------------------------------------------------------------------------

Gamma = Annotated[float, "discount of a reward one step later", FRACTION]
GaeLambda = Annotated[
    float, "lambda of GAE: 1 for whole returns, 0 for one-step temporal differences", FRACTION
]
NormalizeValues = Annotated[
    bool | None,
    "normalize value targets by their running mean and deviation; none: if rewards are not clipped",
]
NormalizeAdvantage = Annotated[bool, "scale advantages to mean 0 and standard deviation 1"]

# --- losses and steps -----------------------------------------------------------------------------

LearningRate = Annotated[
    float, "learning rate of Adam, or of your own optimizer, at the start", NOT_NEGATIVE
]
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
    float | None,
    "Adam's learning rate at the start; none: 0.001, steered by target_kl",
    NOT_NEGATIVE,
]
TargetKl = Annotated[
    float | None,
    "steer the learning rate to this KL divergence per update; 0: anneal it; none:"
    " 0.01, or 0 with a learning_rate",
    NOT_NEGATIVE,
]
RateRule = Annotated[str, "scaling of learning rates with {cls.rate_follows}: none, sqrt or linear"]
MaxGradNorm = Annotated[float, "clip the gradient's global norm to this; 0: off", NOT_NEGATIVE]
ValueCoef = Annotated[float, "value loss coefficient", NOT_NEGATIVE]
EntropyCoef = Annotated[float, "entropy coefficient at the start", NOT_NEGATIVE]
EntropyCoefEnd = Annotated[float, "entropy coefficient at the end of the schedule", NOT_NEGATIVE]
ClipRange = Annotated[
    float, "PPO's clip of the probability ratio, to [1 - this, 1 + this]", NOT_NEGATIVE
]
ClipRangeOrNone = Annotated[
    float,
    "PPO's clip of the probability ratio, to [1 - this, 1 + this]; 0: plain policy gradient",
    NOT_NEGATIVE,
]
Epochs = Annotated[int, "epochs of an update over its batch", COUNT]
Minibatches = Annotated[int, "minibatches per epoch, each with an optimizer step", COUNT]
Lstm = Annotated[int, "units of an LSTM before the heads; 0: none", NOT_NEGATIVE]

# --- the network ----------------------------------------------------------------------------------

Hidden = Annotated[
    str | tuple[int, ...] | None,
    "units of each fully connected layer, such as 256,256; none:"
    " 64,64 for vectors, 512 or 256 after convolutions",
]
Activation = Annotated[
    str | None, "tanh, relu, elu or silu; none: tanh for vectors, relu in convolutional networks"
]
Network = Annotated[
    str, "for images: nature, small, tiny, resnet (IMPALA's), or mlp; auto: chosen by their size"
]
NormalizeObservations = Annotated[
    bool, "normalize observations by running statistics; turn off if scaled or one-hot"
]
CriticNorm = Annotated[str, "normalization of the critics' hidden layers: none or layer"]
FreeLogStd = Annotated[
    bool, "continuous actions: log standard deviations are parameters, the same in every state"
]
LogStdStart = Annotated[
    float,
    "continuous actions: log standard deviation of the policy at the start",
    Range(MIN_LOG_STD, MAX_LOG_STD),
]

# --- a replay -------------------------------------------------------------------------------------

ReplayRows = Annotated[int, "capacity of the replay in steps, over all environments", COUNT]
LearnFrom = Annotated[int, "random steps before the first update", COUNT]
ReplayRatio = Annotated[
    float,
    "times that each step is drawn, on average; if equal to batch_size: one update per step",
    NOT_NEGATIVE,
]
BatchSize = Annotated[int, "steps that an update draws from the replay", COUNT]
NStep = Annotated[int, "rewards in a target before it bootstraps", COUNT]
PrioritizedAlpha = Annotated[
    float, "exponent of priorities, the last TD errors, in draws; 0: uniform draws", FRACTION
]
PrioritizedBeta = Annotated[
    float,
    "exponent of importance weights of prioritized draws; annealed to 1 over the schedule",
    FRACTION,
]
Hindsight = Annotated[
    int,
    "with goals: rows drawn with one that was achieved later, per row drawn with its own (HER's k)",
    NOT_NEGATIVE,
]
Tau = Annotated[float, "step of the target networks towards the online ones per update", FRACTION]
SaveReplay = Annotated[bool, "save the replay with each checkpoint, to resume from it"]

# --- parameters shared by a sync rule -------------------------------------------------------------

Sync = Annotated[
    str,
    "sync rule of the workers' shared parameters (`remotely-rl rules`); its rate= replaces"
    " learning_rate",
]
Accumulate = Annotated[int, "gradients that a worker sums for each push", COUNT]
Optimizer = Annotated[
    str, "optimizer of the shared parameters, or of workers with local steps: rmsprop, adam or sgd"
]
RmspropDecay = Annotated[float, "decay of RMSProp's mean of squared gradients", FRACTION]
RmspropEpsilon = Annotated[float, "epsilon, added to the square root of that mean", NOT_NEGATIVE]

# --- several learners -----------------------------------------------------------------------------

Learners = Annotated[int, "learner processes, each with its own device and actors", COUNT]
LearnersShare = Annotated[
    str, "what learners share: gradients (averaged), or store (parameters that each steps alone)"
]
StepsPerPush = Annotated[
    int, "optimizer steps of a learner between its pushes to the shared store", Range(1, 4)
]


def one_learner(why: str) -> dict[str, str]:
    """Return `Common.lacks` of an algorithm that cannot have several learners."""
    can = "a2c, ppo, pqn, appo, dqn, c51, qr_dqn and rainbow can have several"
    return dict.fromkeys(("learners", "learners_share"), f"{why}; {can}")


# --- machine --------------------------------------------------------------------------------------

Device = Annotated[str, "device of the learner: auto, cpu, cuda or cuda:N"]
LearnerThreads = Annotated[
    int, "torch threads of a learner on the CPU; 0: chosen by the algorithm", NOT_NEGATIVE
]
