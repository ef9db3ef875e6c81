"""What docs/sync.md says of the sync rules, measured.

    python -m tools.sync paper       the FASGD paper's figures, simulated: an hour
    python -m tools.sync scale       semi-async against its neighbours, simulated, to 1,000 clients
    python -m tools.sync race        rules on a live cluster, with stragglers, to CartPole's 475
    python -m tools.sync overhead    what the server costs beyond the gradients

Each writes CSV and PNG into docs/img and prints a table in Markdown.  `--quick` is a minute of
each, to see that it works.
"""
