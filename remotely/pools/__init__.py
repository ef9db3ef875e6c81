"""Many calls over many processes: `Executor`, `Pool`, and the backend of joblib."""
