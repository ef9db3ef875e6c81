"""Environments that may crash: what a crash is, how it is reported, when there are too many.

It knows neither processes nor sockets, and imports neither torch nor the rest of `remotely_rl`.

    report.py       CrashReport: what happened, and how to replay it
    supervised.py   Supervised: an environment whose errors end the episode, and which is remade
    crashes.py      Crashes: tells of crashes once a minute, and ends a run that has too many
    rate.py         CrashRate: how many are too many
    seeds.py        the seed of each episode
    finite.py       finds NaN, infinity and wrong shapes in observations
"""

from remotely_rl.supervision.crashes import Crashes
from remotely_rl.supervision.rate import CrashRate
from remotely_rl.supervision.report import Cause, CrashReport
from remotely_rl.supervision.supervised import Supervised

__all__ = ["Cause", "CrashRate", "CrashReport", "Crashes", "Supervised"]
