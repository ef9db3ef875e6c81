"""Names of settings and algorithms in other libraries: a table of docs/coming_from.md, and hints.

A name in backticks before a cell's first comma is another library's name of the row's setting,
unless the cell begins with words.
"""

import re
from collections.abc import Iterable

from remotely import other_names as names_of_remotely
from remotely.arguments import did_you_mean

LIBRARIES = ("Stable-Baselines3", "CleanRL", "RLlib", "Sample Factory")

# The names of each setting in the four libraries.
TABLE: dict[str, tuple[str, str, str, str]] = {
    "env": ("`env`", "`env_id`", "`env`", "`env`"),
    "env_kwargs": ("`env_kwargs`, of `make_vec_env`", "", "`env_config`", ""),
    "wrappers": ("`wrapper_class`, of `make_vec_env`", "", "", ""),
    "total_steps": (
        "`total_timesteps`, of `learn`", "`total_timesteps`", "", "`train_for_env_steps`",
    ),
    "actors": ("", "", "`num_env_runners`", "`num_workers`"),
    "envs_per_actor": (
        "`n_envs`, of all", "`num_envs`, of all", "`num_envs_per_env_runner`",
        "`num_envs_per_worker`",
    ),
    "rollout_steps": ("`n_steps`", "`num_steps`", "`rollout_fragment_length`", "`rollout`"),
    "batch_rows": ("", "", "`train_batch_size_per_learner`", ""),
    "epochs": ("`n_epochs`", "`update_epochs`", "`num_epochs`", "`num_epochs`"),
    "minibatches": (
        "`batch_size`, in rows", "`num_minibatches`", "`minibatch_size`, in rows",
        "`num_batches_per_epoch`",
    ),
    "learning_rate": ("`learning_rate`", "`learning_rate`", "`lr`", "`learning_rate`"),
    "anneal_steps": (
        "a schedule, as `learning_rate`", "`anneal_lr`, over the whole run", "a schedule, as `lr`",
        "",
    ),
    "target_kl": ("`target_kl`", "`target_kl`", "`kl_target`", "`lr_schedule_kl_threshold`"),
    "gamma": ("`gamma`", "`gamma`", "`gamma`", "`gamma`"),
    "gae_lambda": ("`gae_lambda`", "`gae_lambda`", "`lambda_`", "`gae_lambda`"),
    "clip_range": ("`clip_range`", "`clip_coef`", "`clip_param`", "`ppo_clip_ratio`"),
    "entropy_coef": ("`ent_coef`", "`ent_coef`", "`entropy_coeff`", "`exploration_loss_coeff`"),
    "value_coef": ("`vf_coef`", "`vf_coef`", "`vf_loss_coeff`", "`value_loss_coeff`"),
    "max_grad_norm": ("`max_grad_norm`", "`max_grad_norm`", "`grad_clip`", "`max_grad_norm`"),
    "normalize_advantage": ("`normalize_advantage`", "`norm_adv`", "", ""),
    "normalize_values": ("", "", "", "`normalize_returns`"),
    "reward_clip": ("", "", "`clip_rewards`", "`reward_clip`"),
    "max_staleness": ("", "", "", "`max_policy_lag`"),
    "tau": ("`tau`", "`tau`", "`tau`", ""),
    "policy_delay": ("`policy_delay`", "`policy_frequency`", "", ""),
    "exploration_noise": ("`action_noise`, an object", "`exploration_noise`", "", ""),
    "target_noise": ("`target_policy_noise`", "`policy_noise`", "", ""),
    "target_noise_clip": ("`target_noise_clip`", "`noise_clip`", "", ""),
    "target_entropy": ("`target_entropy`", "", "`target_entropy`", ""),
    "initial_temperature": ('`ent_coef="auto_1.0"`', "", "`initial_alpha`", ""),
    "hidden": (
        "`net_arch`, of `policy_kwargs`", "", "`fcnet_hiddens`, of the model",
        "`encoder_mlp_layers`",
    ),
    "activation": (
        "`activation_fn`, of `policy_kwargs`", "", "`fcnet_activation`, of the model",
        "`nonlinearity`",
    ),
    "network": ("", "", "", "`encoder_conv_architecture`"),
    "lstm": ("", "", "`lstm_cell_size`", "`rnn_size`"),
    "normalize_observations": ("`VecNormalize`, around `env`", "", "", "`normalize_input`"),
    "log_std_start": (
        "`log_std_init`, of `policy_kwargs`", "", "", "the log of `initial_stddev`",
    ),
    "free_log_std": ("always", "always", "`free_log_std`", "not `adaptive_stddev`"),
    "replay_rows": ("`buffer_size`", "`buffer_size`", "`capacity`, of the buffer's config", ""),
    "learn_from": (
        "`learning_starts`", "`learning_starts`", "`num_steps_sampled_before_learning_starts`", "",
    ),
    "replay_ratio": (
        "`gradient_steps` * `batch_size` / (`train_freq` * environments)",
        "`batch_size` / `train_frequency`", "`training_intensity`", "",
    ),
    "batch_size": ("`batch_size`", "`batch_size`", "`train_batch_size_per_learner`", ""),
    "n_step": ("`n_steps`, of DQN", "", "`n_step`", ""),
    "target_update_interval": (
        "`target_update_interval`", "`target_network_frequency`", "`target_network_update_freq`",
        "",
    ),
    "explore_steps": (
        "`exploration_fraction`, of the run", "`exploration_fraction`, of the run",
        "a schedule, as `epsilon`", "",
    ),
    "epsilon": ("`exploration_final_eps`", "`end_e`", "the end of `epsilon`", ""),
    "prioritized_alpha": ("", "", "`alpha`, of the buffer's config", ""),
    "prioritized_beta": ("", "", "`beta`, of the buffer's config", ""),
    "hindsight": ("`n_sampled_goal`, of HerReplayBuffer", "", "", ""),
    "atoms": ("", "`n_atoms`", "`num_atoms`", ""),
    "quantiles": ("`n_quantiles`, of `policy_kwargs`", "", "", ""),
    "value_bound": ("", "`v_max`", "`v_max`", ""),
    "evaluate_every": (
        "`eval_freq`, in steps of one environment", "", "`evaluation_interval`, in iterations", "",
    ),
    "evaluate_episodes": ("`n_eval_episodes`", "", "`evaluation_duration`", ""),
    "evaluate_greedy": ("`deterministic`", "", "", ""),
}  # fmt: skip

# Names of settings in earlier versions.
EARLIER = {"hidden_units": "hidden"}


def here(name: str, known: Iterable[str]) -> list[str]:
    """Return the known settings that other libraries or earlier versions call by this name."""
    return [
        field
        for field, cells in TABLE.items()
        if field in known
        and (
            EARLIER.get(name) == field
            or any(
                name in re.findall(r"`(\w+)(?=[`=])", cell.split(",")[0])
                for cell in cells
                if cell.startswith("`")
            )
        )
    ]


def no_such_name(name: str, algorithms: Iterable[str], known: Iterable[str]) -> AttributeError:
    """Return the error for a name that `remotely_rl` does not have; it has those `known`.

    Other libraries have a class, such as `QRDQN`, where there is a module here, `qr_dqn`.
    """
    spelled = {algorithm.replace("_", ""): algorithm for algorithm in algorithms}
    if ours := spelled.get(name.replace("_", "").lower()):
        hint = f"write remotely_rl.{ours}: {ours}.train({ours}.Config(env=...))"
    else:
        hint = did_you_mean(name, known)
    return names_of_remotely.no_such_name("remotely_rl", f"module.{name}", otherwise=hint)
