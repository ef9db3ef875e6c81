"""`python -m remotely.master`: how a launcher starts this daemon."""

from remotely.master.master import main

main()
