"""`python -m remotely.worker`: how a launcher starts this daemon."""

from remotely.worker.worker import main

main()
