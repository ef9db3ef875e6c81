"""What is measured, and what it is to reach.  `a2c_84_per_s` is A2C at 84x84."""

from tools.bench.rows import Row, Term, at_least

SB3 = Term("sb3", "Stable-Baselines3")
RLLIB = Term("rllib", "RLlib")
SAMPLE_FACTORY = Term("sample_factory", "Sample Factory")

NETWORKS = {42: "42x42, SmallCNN", 84: "84x84, Nature CNN"}


def limit(size: int) -> Term:
    """What the machine allows: see ours/limit.py."""
    return Term("limit", "the composed limit", f"limit_{size}_per_s")


def trained(size: int) -> tuple[Row, ...]:
    """The rows of the algorithms that are measured at both sizes."""
    network, of_limit = NETWORKS[size], at_least(0.85, limit(size))
    of_sb3 = (at_least(2, SB3),) if size == 84 else ()
    of_sample_factory = (at_least(2, SAMPLE_FACTORY),) if size == 84 else ()
    return (
        Row(f"A2C, {network}", f"a2c_{size}_per_s", (of_limit, *of_sb3)),
        Row(f"IMPALA, {network}", f"impala_{size}_per_s", (of_limit, at_least(3, RLLIB))),
        Row(f"IMPALA on Ray's actors, {network}", f"impala_{size}_per_s", of="on_ray"),
        Row(f"APPO, {network}", f"appo_{size}_per_s", of_sample_factory),
        Row(f"PPO, one pass, {network}", f"ppo_{size}_per_s"),
        Row(
            f"DQN, each step learnt from 8 times, {network}",
            f"dqn_{size}_per_s",
            (at_least(0.85, Term("limit", "its composed limit", f"dqn_limit_{size}_per_s")),),
        ),
        Row(
            f"PPO, one pass, {network}, beside a process that takes a core",
            f"busy_ppo_{size}_per_s",
            (at_least(1 / 2.2, Term("ours", "PPO alone", f"ppo_{size}_per_s")),),
        ),
    )


def composed(size: int) -> tuple[Row, ...]:
    """The rows of what the limit is composed of."""
    square = f"{size}x{size}"
    return (
        Row(f"environments alone, {square}", f"environment_{size}_per_s", of="limit"),
        Row(f"inference alone, {square}", f"inference_{size}_per_s", of="limit"),
        Row(f"one training pass alone, {square}", f"training_{size}_per_s", of="limit"),
        Row(f"composed limit, {square}", f"limit_{size}_per_s", of="limit"),
        Row(f"eight passes of DQN alone, {square}", f"dqn_training_{size}_per_s", of="limit"),
        Row(f"DQN's composed limit, {square}", f"dqn_limit_{size}_per_s", of="limit"),
    )


ROWS = (
    *trained(84),
    Row(
        f"DQN in batches of 32, each step learnt from 8 times, {NETWORKS[84]}",
        "dqn_32_84_per_s",
        (at_least(2, SB3),),
    ),
    Row(
        f"the same with a double and dueling network, {NETWORKS[84]}",
        "dqn_32_double_84_per_s",
    ),
    *trained(42),
    Row(
        f"GA3C, {NETWORKS[42]}",
        "ga3c_42_per_s",
        (at_least(0.6, Term("ours", "A2C", "a2c_42_per_s")),),
    ),
    *composed(84),
    *composed(42),
)
