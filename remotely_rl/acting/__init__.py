"""Acting: policies, actors that play, crews that replace them, rounds and streams of rollouts."""
