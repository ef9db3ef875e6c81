"""The measurements of sync rules in docs/sync.md.

    python -m tools.sync combinations   the FASGD paper's figures, simulated: 128 pictures at a
    python -m tools.sync clients        time, thousands of clients, gates; twenty minutes each
    python -m tools.sync gates          on a core
    python -m tools.sync scale          semi-async beside its neighbours, to 1,000 clients
    python -m tools.sync race           rules on a live cluster, with stragglers: CartPole, Pong
    python -m tools.sync penalties      the same for rules by which older gradients count for less
    python -m tools.sync overhead       what the server costs beyond the gradients

Each prints a table in Markdown; `--write` puts it into docs/sync.md, and CSV and PNG into docs/img.
A race adds each run to runs/race.jsonl at once, and goes on from there.  `--quick` is a minute of
each, to see that it works; `--replot` tells anew of the runs that are in docs.
"""
