"""`python -m remotely`: the command `remotely`."""

from remotely.cli import main

if __name__ == "__main__":
    main(prog_name="remotely")
