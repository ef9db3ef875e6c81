"""A module whose import registers an environment: `MODULE_ID` names both."""

import gymnasium

ID = "Registered-v0"
MODULE_ID = f"{__name__}:{ID}"

gymnasium.register(ID, "tests.remotely_rl.toys:Counting")
