"""`python -m remotely.store`: how a worker starts this process."""

from remotely.store.store import main

if __name__ == "__main__":
    main()
