"""The Prometheus metrics of a cluster.  No label identifies a single actor.

remotely_machines                     machines that can be reached
remotely_machines_sick                machines on which the last start of an actor failed
remotely_machines_draining            machines that are being drained
remotely_cpus{state}                  free, used
remotely_gpus{state}                  free, used
remotely_gpus_busy                    the GPUs in use, in sum (0.5: one, half of the time)
remotely_gpus_memory_bytes            of the GPUs, in use
remotely_actors{class}
remotely_calls_total{class}           counted since the dashboard started, while it is scraped
remotely_errors_total{class}          calls, and items of streams, that ended with one; so, too
remotely_memory_bytes{class}          of the actors' own, as limits count it
remotely_machines_memory_bytes{state} free, used, as the kernels count it
remotely_machines_cpu_percent         of all cores, the mean of the machines
remotely_busy{class}                  how many actors ran a call, on average over the last seconds
remotely_bytes{class,way}             of values that living actors have received, sent
remotely_method_seconds{class,method,figure}    mean, p99 (the greatest of the actors')
remotely_waiting                      requests that wait for resources
remotely_own_metrics_left_out         metrics of users with the name of another of another kind

Beside these, the metrics of `remotely.count`, `gauge` and `histogram`, under their own names, with
the label `class` of the actors that keep them.
"""

from collections import Counter
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from remotely.dashboard import own_sums
from remotely.dashboard.own_sums import Labels, Sum
from remotely.dashboard.rows import Snapshot
from remotely.protocol.measures import NO_METHOD
from remotely.reporting.cluster_status import totals

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def text(now: Snapshot) -> bytes:
    """Return a snapshot in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(now))
    return generate_latest(registry)


Sample = tuple[str, Labels, float]
_SUFFIXES = {"counter": ("_total", "_created"), "gauge": ("",)}
_SUFFIXES["histogram"] = ("", "_bucket", "_sum", "_count")
_BOUNDS = [2.0**power for power in range(-20, 31, 2)]


def _family(name: str, kind: str, samples: Iterable[Sample]) -> Metric:
    family = Metric(name, "of this cluster's user", kind)
    for sample, labels, value in samples:
        family.add_sample(sample, dict(labels), value)
    return family


def _histogram(name: str, labels: Labels, found: Sum) -> list[Sample]:
    """Return cumulative buckets with the same bounds at each time, their sum and their number."""
    number = sum(found.buckets.values())
    samples: list[Sample] = []
    for most in _BOUNDS:
        below = sum(n for bound, n in found.buckets.items() if bound is not None and bound <= most)
        samples.append((f"{name}_bucket", (*labels, ("le", f"{most:.6g}")), below))
    samples.append((f"{name}_bucket", (*labels, ("le", "+Inf")), number))
    return [*samples, (f"{name}_sum", labels, found.value), (f"{name}_count", labels, number)]


class _Figures:
    def __init__(self, now: Snapshot) -> None:
        self._now = now

    def collect(self) -> Iterable[Metric]:
        now = self._now
        machines = now.status.machines
        reached = sum(not machine.away_s for machine in machines)
        yield GaugeMetricFamily("remotely_machines", "machines that can be reached", value=reached)
        sick = sum(bool(machine.sick) for machine in machines)
        yield GaugeMetricFamily(
            "remotely_machines_sick", "machines on which starts fail", value=sick
        )
        draining = sum(bool(machine.drains_s) for machine in machines)
        yield GaugeMetricFamily(
            "remotely_machines_draining", "machines that are being drained", value=draining
        )
        sums = totals(machines)
        for what in ("cpus", "gpus"):
            family = GaugeMetricFamily(
                f"remotely_{what}", f"{what} of the cluster", labels=["state"]
            )
            family.add_metric(["free"], sums[f"free_{what}"])
            family.add_metric(["used"], sums[what] - sums[f"free_{what}"])
            yield family
        family = GaugeMetricFamily(
            "remotely_machines_memory_bytes", "memory of the machines", labels=["state"]
        )
        family.add_metric(["free"], sums["memory_total"] - sums["memory_used"])
        family.add_metric(["used"], sums["memory_used"])
        yield family
        yield GaugeMetricFamily(
            "remotely_machines_cpu_percent",
            "CPU of the machines in use",
            value=sum(m.cpu_percent for m in machines) / max(1, len(machines)),
        )
        yield GaugeMetricFamily(
            "remotely_gpus_busy",
            "GPUs in use",
            value=sum(sum(m.gpu_percent) for m in machines) / 100,
        )
        yield GaugeMetricFamily(
            "remotely_gpus_memory_bytes",
            "memory of the GPUs in use",
            value=sum(sum(m.gpu_memory_used) for m in machines),
        )
        count, memory = Counter[str](), Counter[str]()
        for actor in now.status.actors:
            count[actor.class_name] += 1
            memory[actor.class_name] += actor.memory
        for name, help_, by_class in (
            ("remotely_actors", "living actors", count),
            ("remotely_memory_bytes", "memory of actors, of their own", memory),
        ):
            family = GaugeMetricFamily(name, help_, labels=["class"])
            for class_name, number in by_class.items():
                family.add_metric([class_name], number)
            yield family
        for name, help_, sums_ in (
            ("remotely_calls", "calls seen", now.calls),
            ("remotely_errors", "calls and items of streams that ended with an error", now.errors),
        ):
            counter = CounterMetricFamily(name, help_, labels=["class"])
            for class_name, number in sums_.by_class.items():
                counter.add_metric([class_name], number)
            yield counter
        yield from self._times()
        yield GaugeMetricFamily(
            "remotely_waiting", "requests that wait for resources", value=now.status.waiting
        )
        yield from self._own()

    def _own(self) -> Iterable[Metric]:
        """The users' own metrics.  Two of them may have one name, in different processes."""
        sums, gauges = self._now.own.sums, own_sums.gauges(self._now.status)
        taken: set[str] = set()
        left_out = 0
        for (kind, name), each in own_sums.by_name([*sums, *gauges]).items():
            names = {f"{name}{suffix}" for suffix in _SUFFIXES[kind]}
            if names & taken:
                left_out += 1
                continue
            taken |= names
            if kind == "gauge":
                yield _family(
                    name, "gauge", [(name, labels, gauges[kind, name, labels]) for labels in each]
                )
            elif kind == "counter":
                total = f"{name}_total"
                yield _family(
                    name,
                    "counter",
                    [(total, labels, sums[kind, name, labels].value) for labels in each],
                )
            else:
                samples = []
                for labels in each:
                    samples += _histogram(name, labels, sums[kind, name, labels])
                yield _family(name, "histogram", samples)
        yield GaugeMetricFamily(
            "remotely_own_metrics_left_out", "metrics without a name", value=left_out
        )

    def _times(self) -> Iterable[Metric]:
        """What the calls of living actors took: only the methods that took them the most time."""
        busy, traffic = Counter[str](), Counter[tuple[str, str]]()
        calls, seconds = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        p99: dict[tuple[str, str], float] = {}
        for actor in self._now.status.actors:
            busy[actor.class_name] += actor.busy_percent / 100  # type: ignore[assignment]
            traffic[actor.class_name, "received"] += actor.received
            traffic[actor.class_name, "sent"] += actor.sent
            for each in actor.methods:
                if each.method.startswith(NO_METHOD):
                    continue
                key = actor.class_name, each.method
                calls[key] += each.calls
                seconds[key] += each.calls * each.mean_s  # type: ignore[assignment]
                p99[key] = max(p99.get(key, 0.0), each.p99_s)
        family = GaugeMetricFamily("remotely_busy", "actors that run a call", labels=["class"])
        for class_name, share in busy.items():
            family.add_metric([class_name], share)
        yield family
        family = GaugeMetricFamily("remotely_bytes", "bytes of values", labels=["class", "way"])
        for labels, number in traffic.items():
            family.add_metric(labels, number)
        yield family
        family = GaugeMetricFamily(
            "remotely_method_seconds", "time of a call", labels=["class", "method", "figure"]
        )
        for key in calls:
            family.add_metric([*key, "mean"], seconds[key] / calls[key])
            family.add_metric([*key, "p99"], p99[key])
        yield family
