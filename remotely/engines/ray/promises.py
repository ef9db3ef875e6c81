"""What this engine does not keep of what our own clusters promise."""

from remotely.engine import Promises

PROMISES = Promises(
    own_process=False,
    exit_status=False,
    output=False,
    deadlocks=False,
    keys=False,
    detached_restarts=False,
    dial_in=False,
    exact_doubt=False,
)
