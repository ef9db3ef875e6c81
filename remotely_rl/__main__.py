"""`python -m remotely_rl`: the command `remotely-rl`."""

from remotely_rl.cli import main

main(prog_name="remotely-rl")
