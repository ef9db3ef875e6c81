"""Runs test suites that others wrote, with remotely in place of what they test.

    make test-outside                              # all of them
    make test-outside ARGS="loky joblib"           # some

Nothing of theirs is copied into this repository: what pip has is installed, or its source is
downloaded, into .outside/, unless it is in .outside/sources already.  CPython's tests come with its
Python: ~/.pyenv/versions, a Python from python.org, or Debian's libpython3-testsuite.

A file of adapters/ adapts each suite, and says in its docstring what it adapts.  A test that
fails is a fault, unless differences.toml gives the reason; so is a test that is listed there and
passes.  docs/coming_from.md shows the list.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / ".outside"
ADAPTERS = Path(__file__).parent / "adapters"
DIFFERENCES = Path(__file__).parent / "differences.toml"
MOST_S = 120  # for one test

# Beside the dependencies of remotely, at the versions in constraints.txt.
PACKAGES = (
    *("pytest", "pytest-timeout", "joblib", "loky", "torch", "gymnasium[classic-control]"),
    *("ale-py", "pandas", "opencv-python-headless", "tensorboard", "matplotlib", "rich", "moviepy"),
)

# Suites change with their versions, and so do the differences.
SOURCES = ("loky==3.7.0", "stable-baselines3==2.9.2")
# Gymnasium's source package has no tests.
ARCHIVES = {
    "Gymnasium-1.4.0": (
        "https://github.com/Farama-Foundation/Gymnasium/archive/refs/tags/v1.4.0.tar.gz"
    ),
}


class Suite(NamedTuple):
    """A suite: the adapter that runs it, and the source that it needs."""

    adapter: str
    source: str = ""
    select: str = ""  # as pytest's -k


SUITES = {
    "concurrent.futures": Suite("concurrent_futures"),
    "queue": Suite("collections_remote", select="Queue"),
    "list": Suite("collections_remote", select="List"),
    "dict": Suite("collections_remote", select="Dict"),
    "joblib": Suite(
        "joblib_parallel", select="remotely or not (multiprocessing or loky or threading)"
    ),
    "loky": Suite("loky_executor", source="loky-3.7.0"),
    "gymnasium": Suite("gymnasium_vector", source="Gymnasium-1.4.0"),
    "stable-baselines3": Suite("sb3_vec_env", source="stable_baselines3-2.9.2"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test-outside", description=__doc__.split("\n")[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--python", type=Path, help="a Python that has its own tests")
    wanted = parser.parse_args()
    if unknown := set(wanted.suites) - SUITES.keys():
        parser.error(f"no such suite: {', '.join(unknown)}; there are {', '.join(SUITES)}")
    python = wanted.python or next(_pythons(), None)
    if python is None:
        print(
            "No Python here has CPython's own tests (test.test_concurrent_futures, as of 3.13). "
            "Install one with pyenv, or Debian's libpython3-testsuite, or name yours with --python",
            file=sys.stderr,
        )
        return 2
    python = _environment(python)
    found = [_run(python, name) for name in wanted.suites or SUITES]
    return 0 if all(found) else 1


def _pythons() -> Iterator[Path]:
    """Yield the interpreters that have the tests of concurrent.futures."""
    installed = (Path.home() / ".pyenv" / "versions").glob("3.*/bin/python")
    names = (f"python3.{minor}" for minor in (13, 14, 12))
    on_path = (folder / n for n in names for folder in map(Path, os.get_exec_path()))
    for python in [*on_path, *sorted(installed, reverse=True), Path(sys.executable)]:
        check = [str(python), "-c", "import test.test_concurrent_futures.test_deadlock"]
        if (
            python.exists()
            and not subprocess.run(check, capture_output=True, check=False).returncode
        ):
            yield python


def _environment(python: Path) -> Path:
    """Return the Python of the environment in .outside/, which is made if it is out of date."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        needs = [*tomllib.load(file)["project"]["dependencies"], *PACKAGES]
    constraints = ROOT / "constraints.txt"
    state = repr((str(python), needs, SOURCES, constraints.read_text(encoding="utf-8")))
    stamp, venv = FOLDER / "installed", FOLDER / "venv"
    inside = venv / "bin" / "python"
    digest = hashlib.sha256(state.encode()).hexdigest()
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != digest:
        print(f"Installing into {FOLDER}, with {python}")
        subprocess.run([python, "-m", "venv", "--clear", venv], check=True)
        pip = [str(inside), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "-c", str(constraints), *needs], check=True)
        sources = FOLDER / "sources"
        download = [*pip, "download", "--no-deps", "--no-binary", ":all:", "-d", str(sources)]
        for source in SOURCES:
            subprocess.run([*download, source], check=True)
        for name, url in ARCHIVES.items():
            if not (sources / name).exists():
                print(f"Downloading {url}")
                urllib.request.urlretrieve(url, sources / f"{name}.tar.gz")
        for archive in sources.glob("*.tar.gz"):
            with tarfile.open(archive) as tar:
                tar.extractall(sources, filter="data")
        stamp.write_text(digest, encoding="utf-8")
    return inside


def _run(python: Path, name: str) -> bool:
    """Run a suite; print and return whether it does what differences.toml says."""
    suite = SUITES[name]
    results = FOLDER / f"{name}.xml"
    results.unlink(missing_ok=True)
    paths = [ROOT, *([FOLDER / "sources" / suite.source] if suite.source else [])]
    command = [
        *(python, "-m", "pytest", "-q", "--tb=short", f"--junitxml={results}"),
        *("-c", os.devnull, "--rootdir", FOLDER, "--noconftest", "-p", "no:cacheprovider"),
        *("--assert=plain", "--timeout", str(MOST_S)),  # plain: modules that actors can import
        *(("-k", suite.select) if suite.select else ()),
    ]
    done = subprocess.run(
        [*command, ADAPTERS / f"{suite.adapter}.py"],
        cwd=FOLDER,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        stdout=(FOLDER / f"{name}.log").open("w"),
        stderr=subprocess.STDOUT,
        check=False,
    )
    if not results.exists():
        print(f"{name}: did not run, exit status {done.returncode}: see {FOLDER / name}.log")
        return False
    outcomes = _outcomes(results)
    listed = [pattern for entry in differences().get(name, ()) for pattern in entry["tests"]]
    failed = {test for test, outcome in outcomes.items() if outcome == "failed"}
    ran = {test for test, outcome in outcomes.items() if outcome != "skipped"}
    known = {test for test in ran if any(_matches(test, pattern) for pattern in listed)}
    unused = [pattern for pattern in listed if not any(_matches(t, pattern) for t in failed)]
    print(f"{name}: {len(ran - failed)} of {len(ran)} pass, {len(failed & known)} differ by design")
    for test in sorted(failed - known):
        print(f"  failed, and is not in {DIFFERENCES.name}: {test}")
    for test in sorted(known - failed):
        print(f"  passes, and is in {DIFFERENCES.name}: {test}")
    for pattern in unused:
        print(f"  in {DIFFERENCES.name}, and no test that fails: {pattern}")
    return failed == known and not unused


def _matches(test: str, pattern: str) -> bool:
    return test == pattern or (pattern.endswith("*") and test.startswith(pattern[:-1]))


def _outcomes(results: Path) -> dict[str, str]:
    """Return "passed", "failed" or "skipped" for each test, by its class and name."""
    outcomes: dict[str, str] = {}
    for case in ET.parse(results).iter("testcase"):
        _, _, group = case.get("classname", "").rpartition(".")
        test = f"{group}.{case.get('name')}" if group[:1].isupper() else str(case.get("name"))
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "passed"
        outcome = "skipped" if "skipped" in kinds else outcome
        if outcomes.get(test) != "failed":  # of a subtest
            outcomes[test] = outcome
    return outcomes


def differences() -> dict[str, list[dict[str, Any]]]:
    """Return for each suite the tests that fail by design, with reasons."""
    with DIFFERENCES.open("rb") as file:
        return tomllib.load(file)


if __name__ == "__main__":
    sys.exit(main())
