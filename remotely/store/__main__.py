"""The entry point by which a worker starts a store: `python -m remotely.store`."""

from remotely.store.store import main

if __name__ == "__main__":
    main()
