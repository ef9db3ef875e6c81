"""A process that serves a ledger: python -m tests.chaos.guest ADDRESS KEY FOLDER.

It dials in again, whatever is killed, until it is killed itself.
"""

import sys

import remotely
from tests.chaos.load import Ledger


def main() -> None:
    address, key, folder = sys.argv[1:]
    ledger = remotely.local(Ledger, folder)
    while True:  # a client may have closed it
        remotely.serve(ledger, address=address, key=key, patience_s=300)


if __name__ == "__main__":
    main()
