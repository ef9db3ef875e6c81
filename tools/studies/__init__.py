"""Studies of the size of a batch, after Stooke and Abbeel 2018: the figures of docs/results.md.

    python -m tools.studies.simulators       A2C with 16 to 512 simulators: steps to the target,
                                             and signal and noise of its gradients
    python -m tools.studies.actors           PPO with 2 to 15 actors: steps to the target
    python -m tools.studies.norms            norms of weights, gradients and steps by layer, of Adam
                                             and RMSProp with batches of 64 to 1,024
    python -m tools.studies.second_learner   a learner that only has another one's experience

Each adds its rows to a file in runs/ after a run, does not repeat runs in that file, and draws all
to docs/img.  Runs are in one process, so a seed takes the same steps on any machine.  The loops
(for the last two in from_replay.py) use public functions only.
"""
