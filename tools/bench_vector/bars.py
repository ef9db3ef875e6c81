"""What is measured, and what it is to reach.

`cartpole_8_per_s` is steps of 8 CartPoles a second, with as many in a process as are there by
default: a process a core.  `each_...` is with a process for each environment, as the peers have it.
"""

from tools.bench.rows import Row, Term, at_least

SYNC = "sync", "SyncVectorEnv"


def others(figure: str) -> tuple[Term, Term]:
    return (
        Term("async", "AsyncVectorEnv", figure),
        Term("sb3", "SubprocVecEnv", figure),
    )


def rows_of(title: str, name: str, several: float, each: float) -> tuple[Row, ...]:
    figure = f"{name}_per_s"
    return (
        Row(title, figure, tuple(at_least(several, term) for term in others(figure))),
        Row(
            f"{title}, a process each",
            f"each_{figure}",
            tuple(at_least(each, term) for term in others(figure)),
        ),
    )


ROWS = (
    *rows_of("CartPole, 8", "cartpole_8", 3, 1),
    *rows_of("CartPole, 64", "cartpole_64", 3, 1),
    *rows_of("Pong, 84x84 in stacks of 4, 8", "pong_8", 1.3, 1),
    Row("the same without a copy of the observations", "views_pong_8_per_s"),
    Row(
        "the loop of one process: CartPole, 8",
        "loop_8_per_s",
        (at_least(1, Term(*SYNC, "loop_8_per_s")),),
    ),
    Row(
        "the loop of one process: CartPole, 64",
        "loop_64_per_s",
        (at_least(1, Term(*SYNC, "loop_64_per_s")),),
    ),
)
