"""Stable-Baselines3's PPO on fault-tolerant environments.

    pip install stable-baselines3
    python examples/sb3_ppo.py

Only the line that makes `envs` differs from a usual script.  Environments run in actors on this
machine, or on a cluster if you connect to one first: remotely.connect("host:8010").
"""

import torch

try:
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy

    from remotely_rl.sb3 import VecEnv
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install stable-baselines3") from None


def main(total_steps: int = 50_000) -> float:
    torch.set_num_threads(1)  # faster for a network this small, and leaves the cores to the actors
    envs = VecEnv("CartPole-v1", 8)  # in place of make_vec_env("CartPole-v1", 8)
    model = PPO("MlpPolicy", envs, n_steps=128, batch_size=256, device="cpu", seed=1, verbose=1)
    model.learn(total_steps)
    mean, _ = evaluate_policy(model, envs, n_eval_episodes=16)
    envs.close()
    print(f"mean return {mean:.1f}")
    return float(mean)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None
