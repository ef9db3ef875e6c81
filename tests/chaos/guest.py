"""A process that serves a ledger: python -m tests.chaos.guest ADDRESS KEY FOLDER.

It reconnects whatever is killed, until it is killed itself.
"""

import sys

import remotely
from tests.chaos.load import Ledger


def main() -> None:
    address, key, folder = sys.argv[1:]
    ledger = remotely.local(Ledger, folder)
    while True:  # `serve` returns if a client has closed it
        remotely.serve(ledger, address=address, key=key, patience_s=300)


if __name__ == "__main__":
    main()
