"""What is measured, and what it is to reach.

`uniform_84_per_s` is draws of 256 rows a second of 84x84 pictures in stacks of 4.  A draw by
priority includes its weights, and new priorities for what was drawn.
"""

from tools.bench.rows import Row, Term, at_least, at_most

TAKE, COPY = "take", "copy"


def alone(side: int, rows: str, prioritised: float, row_bytes: int) -> tuple[Row, ...]:
    """The rows of a large replay of pictures of this side, which is compared with bare copies."""
    what = f"{rows} rows of {side}x{side}"
    uniform = f"uniform_{side}_per_s"
    return (
        Row(
            f"{what}, uniform",
            uniform,
            (at_least(0.6, Term(TAKE, "numpy.take of as many bytes")),),
        ),
        Row(
            f"{what}, by priority, with update",
            f"prioritised_{side}_per_s",
            (at_least(prioritised, Term("ours", "uniform", uniform)),),
        ),
        Row(f"{side}x{side}, a million rows in memory", f"million_{side}_bytes",
            (at_most(row_bytes * 1e6),)),
    )  # fmt: skip


ROWS = (
    *alone(84, "500,000", 1 / 1.5, 7_200),
    *alone(42, "a million", 1 / 2, 1_850),
    Row(
        "a million rows of 42x42, saved",
        "save_bytes_per_s",
        (at_least(0.7, Term(COPY, "a copy of the files", "copy_bytes_per_s")),),
    ),
    Row(
        "a million rows of 42x42, loaded",
        "load_bytes_per_s",
        (at_least(0.7, Term(COPY, "a copy of the files", "copy_bytes_per_s")),),
    ),
    Row(
        "30,000 rows of 84x84, uniform",
        "beside_84_per_s",
        (
            at_least(1.3, Term("sb3", "SB3")),
            at_least(1.5, Term("cpprb", "cpprb, compressed")),
            at_least(10, Term("torchrl", "torchrl, CatFrames", "stacked_84_per_s")),
        ),
    ),
    Row(
        "30,000 rows of 84x84, by priority, with update",
        "beside_prioritised_84_per_s",
        (at_least(1.5, Term("torchrl", "torchrl")),),
    ),
    Row(
        "100,000 rows of 4 numbers, uniform",
        "beside_vector_per_s",
        (at_least(1.3, Term("sb3", "SB3")),),
    ),
    Row(
        "100,000 rows of 4 numbers, by priority, with update",
        "beside_prioritised_vector_per_s",
        (at_least(1.5, Term("torchrl", "torchrl")),),
    ),
    Row(
        "appended rows of 84x84, 4 steps of 64 environments at a time",
        "append_84_per_s",
    ),
    Row("the same, as an actor of the machine sent them", "append_sent_84_per_s"),
)
