"""`python -m remotely.worker`: the command with which a launcher starts this daemon."""

from remotely.worker.worker import main

main()
