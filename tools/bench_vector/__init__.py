"""How fast vector environments step, beside Gymnasium's AsyncVectorEnv and SB3's SubprocVecEnv."""
