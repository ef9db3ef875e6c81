"""`python -m remotely_rl`: the command `remotely-rl`."""

from remotely_rl.cli import main

if __name__ == "__main__":
    main(prog_name="remotely-rl")
