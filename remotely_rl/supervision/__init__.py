"""Fault-tolerant environments: crash detection, crash reports, and the limit on the crash rate.

It does not import torch, and of `remotely_rl` only errors and trees.

    report.py       CrashReport: what happened, and how to replay it
    vector.py       SupervisedVectorEnv: an error in an environment ends only its episode
    whole.py        WatchedVectorEnv: watches over a third-party vector environment
    made.py         the check that a maker has made an environment
    judgement.py    what an environment says of goals other than its own
    rows.py         Rows: arrays of observations, and their validation
    infos.py        merging the infos of several processes
    flight.py       FlightRecord: what a process is doing, readable after it has died
    watchdog.py     Watchdog: kills a process whose environment hangs
    failures.py     kinds of failures, and CrashReports, from `remotely` errors
    supervisor.py   Supervisor: what follows when a process of a run fails
    crashes.py      Crashes: logs crashes, at most once a minute, and ends a run that has too many;
                    CrashRate: how many are too many
    logbook.py      Logbook: crash reports in a file
    seeds.py        the seed of each episode
"""

from remotely_rl.supervision.crashes import Crashes, CrashRate
from remotely_rl.supervision.report import Cause, CrashReport
from remotely_rl.supervision.vector import SupervisedVectorEnv

__all__ = ["Cause", "CrashRate", "CrashReport", "Crashes", "SupervisedVectorEnv"]
