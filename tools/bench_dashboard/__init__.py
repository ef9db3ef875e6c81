"""How fast the dashboard is, on clusters and runs that are made up."""
