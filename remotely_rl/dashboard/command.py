"""The command `remotely-rl dashboard`: the runs of a folder, and a cluster if one is named."""

from pathlib import Path
from typing import Any

from remotely.cli.options import chosen_cluster, viewer_at
from remotely.dashboard import app, server
from remotely_rl.dashboard import panel
from remotely_rl.errors import TrainingError


def run(runs: Path, address: str | None, key: Path | None, where: dict[str, Any]) -> None:
    """Serve until Ctrl-C.  Raises TrainingError if there is no such folder."""
    if not runs.is_dir():
        raise TrainingError(
            f"there is no folder {runs}; `remotely-rl train` makes `runs` in its working directory,"
            " or name the folder of your runs"
        )
    panels = [panel.panel(runs)]
    at = server.Where(**where)
    if address is None:
        server.serve(at, None, panels)
        return
    cluster = chosen_cluster(address, None)
    with viewer_at(cluster, key) as viewer:
        server.serve(at, app.Cluster(cluster.shown, viewer), panels)
