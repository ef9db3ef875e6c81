"""The command `remotely-rl dashboard`: the runs of a folder, and a cluster if one is named."""

from pathlib import Path
from typing import Any

from remotely.client.viewer import viewer_of
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
    viewer = viewer_of(address, key)
    try:
        server.serve(at, app.Cluster(address, viewer), panels)
    finally:
        viewer.close()
