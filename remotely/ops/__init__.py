"""Starting and stopping clusters: on one machine, over ssh, and for the length of a job."""
