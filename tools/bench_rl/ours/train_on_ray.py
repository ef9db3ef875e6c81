"""The same as train.py, on Ray's actors."""

import os

from tools.bench_rl.ours import train

if __name__ == "__main__":
    os.environ["REMOTELY_ADDRESS"] = "ray:local"
    train.main()
