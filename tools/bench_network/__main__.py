"""The benchmark of values between machines, compared with a plain TCP connection.

    sudo python -m tools.bench_network                    all rows
    sudo python -m tools.bench_network --quick            small values, once
    sudo python -m tools.bench_network --only array group
    sudo python -m tools.bench_network --write            puts the table into docs/lab/benchmarks.md

The machines are network namespaces of this one, so both ends share its cores.  The rows on lines of
1 Gbit/s use `tc tbf`; loss and delay are from a process that carries packets (lossy.py).  Each
figure is a median; a ratio is of two figures of one run.  Run it on an idle machine.
"""

import json
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tools import command_line
from tools.bench.benchmark import ROOT, python_of
from tools.bench.page import replaced
from tools.bench_network import of_ray, spaces
from tools.bench_network.spaces import PORT, Spaces, address_of, name_of

PAGE = ROOT / "docs" / "lab" / "benchmarks.md"
MARKS = "<!-- network -->", "<!-- end network -->"
HEAD = ("between machines", "to reach", "measured", "beside it", "reached")
PEERS = python_of(".peers")
BAD_LINE = "10.232.1"  # the network of the line that loses packets


class Line(NamedTuple):
    """One row of the table."""

    title: str
    reach: str
    measured: str
    beside: str
    reached: bool | None = None


class Size(NamedTuple):
    """The amount of a measurement."""

    nbytes: int
    times: int
    calls: int


FULL, QUICK = Size(100_000_000, 7, 10_000), Size(20_000_000, 2, 1_000)


class Run:
    def __init__(self, place: Spaces, size: Size) -> None:
        self.place = place
        self.size = size

    def client(self, row: str, nbytes: int, times: int) -> dict[str, Any]:
        return _read(self.start_client(row, nbytes, times))

    def start_client(
        self, row: str, nbytes: int, times: int, master: str = f"{address_of(0)}:{PORT}"
    ) -> "subprocess.Popen[str]":
        words = (master, row, str(nbytes), str(times))
        return self.place.popen(0, "tools.bench_network.client", *words)

    @contextmanager
    def raw_server(self, how: str) -> Iterator[None]:
        server = self.place.popen(1, "tools.bench_network.raw", how, "serve")
        assert server.stdout is not None
        server.stdout.readline()
        try:
            yield
        finally:
            server.kill()
            server.wait()

    def raw(self, how: str = "tcp") -> tuple[float, float]:
        """Return the seconds of a value there, and back, over a plain connection."""
        with self.raw_server(how):
            process = self.place.popen(
                0,
                "tools.bench_network.raw",
                how,
                "send",
                address_of(1),
                str(self.size.nbytes),
                str(self.size.times),
            )
            report = _read(process)
        return statistics.median(report["there_s"]), statistics.median(report["back_s"])

    def ray(self, machines: int) -> str:
        """Describe Ray's times for a value to one machine and to all."""
        if not PEERS.exists():
            return "Ray is not installed (make bench-peers)"
        head = f"{address_of(0)}:{of_ray.PORT}"
        size = [str(n) for n in (machines, self.size.nbytes, min(3, self.size.times))]
        with self.place.ray(PEERS.parent / "ray", of_ray.PORT):
            done = subprocess.run(
                self.place.command(0, str(PEERS), of_ray.__file__, head, *size),
                env=self.place.environment(0),
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        report = json.loads(done.stdout.splitlines()[-1])
        one, every = (statistics.median(report[key]) for key in ("one_s", "all_s"))
        return f"Ray {1000 * every:.0f} ms, to one {1000 * one:.0f} ms"


def array(run: Run) -> list[Line]:
    there, back = run.raw()
    tls_there, tls_back = run.raw("tls")
    report = run.client("array", run.size.nbytes, run.size.times)
    ours, raw = statistics.median(report["both_s"]), there + back
    tls = tls_there + tls_back
    nbytes = run.size.nbytes
    return [
        Line(
            f"{_mb(nbytes)} to an actor and back",
            ">= 0.7 of TCP's bandwidth",
            f"{2 * nbytes / ours / 1e9:.2f} GB/s",
            f"TCP {2 * nbytes / raw / 1e9:.2f} GB/s: {raw / ours:.2f} of it; TLS alone"
            f" {2 * nbytes / tls / 1e9:.2f}: {tls / ours:.2f}",
            raw / ours >= 0.7,
        ),
        Line(
            f"{_mb(nbytes)} to an actor",
            "",
            f"{nbytes / statistics.median(report['there_s']) / 1e9:.2f} GB/s",
            f"TCP {nbytes / there / 1e9:.2f} GB/s; TLS alone {nbytes / tls_there / 1e9:.2f}",
        ),
        Line("a call", "", f"{1e6 * statistics.median(report['call_s']):.0f} us", ""),
    ]


def group(run: Run) -> list[Line]:
    report = run.client("group", run.size.nbytes, run.size.times)
    one = statistics.median(report["one_s"])
    lines = []
    for word, key in (("passed to", "eight_s"), ("put, and passed to", "put_s")):
        eight = statistics.median(report[key])
        lines.append(
            Line(
                f"{_mb(run.size.nbytes)} {word} 8 actors of a machine",
                "<= 1.3 x one actor",
                f"{1000 * eight:.0f} ms",
                f"one {1000 * one:.0f} ms: {eight / one:.2f} x",
                eight / one <= 1.3,
            )
        )
    return lines


def machines(run: Run) -> list[Line]:
    run.place.shape("1gbit")
    try:
        there, _ = run.raw()
        report = run.client("machines", run.size.nbytes, min(3, run.size.times))
        ray = run.ray(report["machines"])
    finally:
        run.place.shape("")
    one, every = statistics.median(report["one_s"]), statistics.median(report["all_s"])
    return [
        Line(
            f"{_mb(run.size.nbytes)} to {report['machines']} machines, on lines of 1 Gbit/s",
            "<= 1.5 x one machine",
            f"{1000 * every:.0f} ms",
            f"one {1000 * one:.0f} ms: {every / one:.2f} x; TCP to one {1000 * there:.0f} ms;"
            f" {ray}",
            every / one <= 1.5,
        )
    ]


def published(run: Run) -> list[Line]:
    run.place.shape("1gbit")
    try:
        report = run.client("published", run.size.nbytes, min(3, run.size.times))
    finally:
        run.place.shape("")
    one, every = statistics.median(report["one_s"]), statistics.median(report["all_s"])
    return [
        Line(
            f"a new version of {_mb(run.size.nbytes)} on {report['machines']} machines, on lines of"
            " 1 Gbit/s",
            "<= 1.3 x one machine",
            f"{1000 * every:.0f} ms",
            f"one {1000 * one:.0f} ms: {every / one:.2f} x",
            every / one <= 1.3,
        )
    ]


def future(run: Run) -> list[Line]:
    process = run.start_client("future", run.size.nbytes, run.size.times)
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdout.readline()
    before = run.place.traffic(0)
    process.stdin.write("go\n")
    process.stdin.flush()
    out = process.stdout.readline()
    traffic = run.place.traffic(0) - before
    report = _read(process, out)
    share = traffic / (report["calls"] * run.size.nbytes)
    return [
        Line(
            f"{_mb(run.size.nbytes)} from actor to actor, by a future",
            "client's traffic < 1 %",
            f"{100 * share:.3f} %",
            f"{1000 * statistics.median(report['future_s']):.0f} ms, made there",
            share < 0.01,
        )
    ]


def many(run: Run) -> list[Line]:
    report = run.client("many", 1_000_000, run.size.times)
    took = statistics.median(report["s"])
    return [
        Line(
            f"replies of 1 MB from {report['actors']} actors on {report['machines']} machines",
            "",
            f"{report['actors'] * 1e6 / took / 1e9:.2f} GB/s",
            "",
        )
    ]


def loss(run: Run) -> list[Line]:
    """Measure on a separate line between machines 0 and 1, with a separate cluster."""
    carrier = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tools.bench_network.lossy",
            name_of(0),
            f"{BAD_LINE}.1",
            name_of(1),
            f"{BAD_LINE}.2",
            "1",
            "50",
        ],
        stdout=subprocess.PIPE,
    )
    try:
        assert carrier.stdout is not None
        carrier.stdout.readline()
        place = run.place
        other = str(int(PORT) + 1)
        home = place.home(0)
        place.remotely(0, "start", "--host", f"{BAD_LINE}.1", "--port", other, "--cpus", "0")
        try:
            key = str(home / "keys" / "worker.key")
            place.remotely(
                1,
                "join",
                f"{BAD_LINE}.1:{other}",
                "--key",
                key,
                "--cpus",
                "2",
                "--host",
                f"{BAD_LINE}.2",
            )
            master = f"{BAD_LINE}.1:{other}"
            report = _read(run.start_client("calls", 2_000_000, run.size.calls, master))
        finally:
            place.remotely(0, "stop", "--port", other)
    finally:
        carrier.kill()
        carrier.wait()
    return [
        Line(
            f"{report['calls']:,} calls at 1 % loss and 50 ms delay",
            "no anomaly",
            f"{report['anomalies']} anomalies",
            f"{report['calls'] / report['s']:,.0f} calls/s; 2 MB there and back "
            f"{statistics.median(report['echo_s']):.1f} s",
            report["anomalies"] == 0,
        )
    ]


ROWS: dict[str, Callable[[Run], list[Line]]] = {
    "array": array,
    "group": group,
    "machines": machines,
    "published": published,
    "future": future,
    "many": many,
    "loss": loss,
}
MACHINES = {
    "array": 1,
    "group": 1,
    "machines": 8,
    "published": 8,
    "future": 2,
    "many": 10,
    "loss": 1,
}
CPUS = {"machines": 1, "published": 1}  # of each machine, so each has one member of the group


def main() -> int:
    parser = command_line.parser("python -m tools.bench_network", __doc__)
    parser.add_argument("--quick", action="store_true", help="small values, a few times")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=ROWS,
        default=list(ROWS),
        metavar="ROW",
        help=f"only these rows: {', '.join(ROWS)}",
    )
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    options = parser.parse_args()
    if why := spaces.why_not():
        raise SystemExit(why)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # it cleans up, as at Ctrl-C
    lines: list[Line] = []
    for row in options.only:
        with tempfile.TemporaryDirectory(prefix="rbn-") as folder:
            place = Spaces(MACHINES[row], Path(folder))
            try:
                place.start(CPUS.get(row, 16))
                lines += ROWS[row](Run(place, QUICK if options.quick else FULL))
            finally:
                place.close()
        print(*_text(lines[-1:]), sep="\n", flush=True)
    print()
    table = _text(lines, HEAD)
    print(*table, sep="\n")
    if options.write:
        PAGE.write_text(replaced(PAGE.read_text(), *MARKS, "\n".join(table)))
    return 0


def _text(lines: list[Line], head: tuple[str, ...] = ()) -> list[str]:
    words = {True: "yes", False: "no", None: ""}
    rows: list[tuple[str, ...]] = [(*line[:4], words[line.reached]) for line in lines]
    if head:
        rows = [head, ("---",) * len(head), *rows]
    return [f"| {' | '.join(row)} |" for row in rows]


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:g} MB"


def _read(process: "subprocess.Popen[str]", line: str = "") -> dict[str, Any]:
    """Wait for a process; return its report, in `line` or the last line of its output."""
    out = line + process.communicate()[0]
    if process.returncode or not out.strip():
        raise SystemExit(f"a part of the benchmark failed (status {process.returncode}): {out}")
    report: dict[str, Any] = json.loads(out.splitlines()[-1])
    return report


if __name__ == "__main__":
    sys.exit(main())
