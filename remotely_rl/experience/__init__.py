"""Experience: what actors return and learners train on."""
