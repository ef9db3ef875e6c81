"""Environments that may crash: what a crash is, how it is reported, when there are too many.

It imports neither torch nor more of `remotely_rl` than errors and trees.

    report.py       CrashReport: what happened, and how to replay it
    vector.py       SupervisedVectorEnv: environments whose errors end the episode
    whole.py        WatchedVectorEnv: the same for a vector environment of somebody else, as a whole
    rows.py         their observations, and what is wrong with one
    infos.py        infos of several processes as one
    flight.py       FlightRecord: what they are doing, readable after their process has died
    watchdog.py     ends a process whose environment does not return
    failures.py     from an error of `remotely` to the report
    crashes.py      Crashes: tells of crashes once a minute, and ends a run that has too many;
                    CrashRate: how many are too many
    logbook.py      reports in a file
    seeds.py        the seed of each episode
"""

from remotely_rl.supervision.crashes import Crashes, CrashRate
from remotely_rl.supervision.report import Cause, CrashReport
from remotely_rl.supervision.vector import SupervisedVectorEnv

__all__ = ["Cause", "CrashRate", "CrashReport", "Crashes", "SupervisedVectorEnv"]
