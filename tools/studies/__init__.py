"""Studies of the size of a batch, after Stooke and Abbeel 2018: the figures of docs/results.md.

    python -m tools.studies.simulators       A2C with 16 to 512 simulators: steps until it is good,
                                             and signal and noise of its gradients
    python -m tools.studies.actors           PPO with 2 to 15 actors: steps until it is good
    python -m tools.studies.norms            norms of weights, gradients and steps by layer, of Adam
                                             and RMSProp with batches of 64 to 1,024
    python -m tools.studies.second_learner   a learner that sees only what another one has played

Each adds its runs to a CSV in docs/img as they end, does not repeat those that are there, and
draws a figure of all beside it.  Runs are in one process, so that a seed takes as many steps
whatever else the machine does.  The loops are recipes (that of the last two is in from_replay.py):
they use what any script may use.
"""
