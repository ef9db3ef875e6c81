"""`remotely kubernetes`."""

import click


@click.command(short_help="Print a manifest of a cluster for Kubernetes.")
@click.option("--image", required=True, help="It has Python, remotely, and what your code needs.")
@click.option("--workers", type=click.IntRange(min=0), required=True, help="How many Pods of them.")
@click.option("--cpus", default="1", show_default=True, help="Of each worker.")
@click.option("--memory", default="", help="Of each worker, as 8Gi.")
@click.option("--gpus", type=click.IntRange(min=0), default=0, help="Of each worker.")
@click.option("--name", default="remotely", show_default=True, help="Of what is made there.")
def kubernetes(image: str, workers: int, cpus: str, memory: str, gpus: int, name: str) -> None:
    """Print a manifest: a Secret with new keys, a Service, and the Pods of master and workers.

    \b
    remotely kubernetes --image registry/train:1 --workers 8 --cpus 4 | kubectl apply -f -
    kubectl exec -it remotely-master-0 -- python train.py
    kubectl delete secret,service,statefulset -l app=remotely

    To change the number of workers later, use kubectl scale: another manifest has new keys, and
    restarts everything.

    What is printed has the keys in it: send it to kubectl, and not into a log.
    """
    from remotely.ops.kubernetes import Pods, manifest

    click.echo(manifest(Pods(name, image, workers, cpus, memory, gpus)), nl=False)
