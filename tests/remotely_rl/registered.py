"""A module that registers an environment as it is imported: `MODULE_ID` names both."""

import gymnasium

ID = "Registered-v0"
MODULE_ID = f"{__name__}:{ID}"

gymnasium.register(ID, "tests.remotely_rl.toys:Counting")
