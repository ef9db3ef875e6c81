"""Runs in a notebook: the table, the result, and an interrupted kernel."""

import base64
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from remotely_rl.runs.result import Result

CONFIG = 'ppo.Config(env="CartPole-v1", actors=1, log_interval_s=0.5, {limit})'
CELLS = [
    "import os\nfrom remotely_rl import ppo",
    # The run interrupts itself, as the kernel's button would.
    f"""
from remotely_rl import Hook
class Interrupt(Hook):
    def on_row(self, session, row):
        if session.env_steps:
            os.killpg(os.getpgid(0), {signal.SIGINT})
first = ppo.train({CONFIG.format(limit="minutes=50")}, hooks=[Interrupt()])""",
    f"second = ppo.train({CONFIG.format(limit='total_steps=4_000')})\nsecond",
    "print(first.ended, '|', second.ended)\nimport remotely; remotely.shutdown()",
]


def test_a_result_is_a_table_with_its_curve(tmp_path: Path) -> None:
    result = Result(tmp_path, "stopped <by> SIGINT", 61.0, 1_000, 3, 20, 12.5, 14.0)
    assert "<img" not in result._repr_html_()
    (tmp_path / "curve.png").write_bytes(b"picture")
    shown = result._repr_html_()
    assert "<td>stopped &lt;by&gt; SIGINT</td>" in shown
    assert "<td>12.50</td>" in shown
    assert f"data:image/png;base64,{base64.b64encode(b'picture').decode()}" in shown


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_notebook_shows_one_table_stops_gracefully_and_trains_again(tmp_path: Path) -> None:
    nbformat: Any = pytest.importorskip("nbformat").v4
    client: Any = pytest.importorskip("nbclient").NotebookClient
    book = nbformat.new_notebook(cells=[nbformat.new_code_cell(cell) for cell in CELLS])
    resources = {"metadata": {"path": str(tmp_path)}}

    client(book, timeout=200, resources=resources).execute()

    _, first, second, last = [cell.outputs for cell in book.cells]
    for outputs in (first, second):
        tables = [one for one in outputs if one.output_type == "display_data"]
        assert len(tables) == 1
        assert "a second" in tables[0].data["text/html"]
    assert 'src="data:image/png;base64,' in second[-1].data["text/html"]
    assert last[0].text == "stopped by SIGINT | 4,000 steps are done\n"
    assert os.listdir(tmp_path) == ["runs"]
