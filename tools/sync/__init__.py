"""The measurements of sync rules in docs/lab/sync.md.

    python -m tools.sync combinations   simulations of the FASGD paper's figures: 128 images at a
    python -m tools.sync clients        time, thousands of clients, gates; each 20 minutes on one
    python -m tools.sync gates          core
    python -m tools.sync scale          semi-async and its neighbours, with up to 1,000 clients
    python -m tools.sync race           rules on a live cluster, with stragglers: CartPole, Pong
    python -m tools.sync penalties      the same for rules with penalties for older gradients
    python -m tools.sync overhead       the server's cost beyond the gradients

Each prints a table in Markdown; `--write` puts it into docs/lab/sync.md and the PNG into docs/img.
CSVs and the runs of a race are in runs/, and a race continues there.  `--quick` is a test of a
minute; `--replot` uses the stored runs.
"""
