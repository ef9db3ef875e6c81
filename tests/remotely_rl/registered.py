"""A module that registers an environment as it is imported: `MODULE_ID` names both."""

import gymnasium

from tests.remotely_rl import toys

ID = "Registered-v0"
MODULE_ID = f"{__name__}:{ID}"

gymnasium.register(ID, entry_point=toys.Counting)
