"""Experience: the trajectories that actors return, and the batches that learners train on."""
