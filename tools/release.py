"""The build of a release: `make release`.  A pushed tag uploads it (release.yml).

It fails if the tag, the changelog and the version differ, or if files are not committed.  It builds
the wheel and the source archive twice, and the bytes must be equal, so that anybody can build them
again from the tag and compare.
"""

import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import remotely

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
TARGETS = ("wheel", "sdist")


def obstacle(version: str, tags: list[str], changelog: str, changed: list[str]) -> str:
    """Return why a release is impossible, or an empty text.

    `tags` are the current commit's, `changed` the files that are not committed.
    """
    if changed:
        return f"not committed: {', '.join(changed)}"
    heading = re.search(r"^## \[(\d[^]]*)\] - \d{4}-\d\d-\d\d$", changelog, re.MULTILINE)
    if heading is None or heading[1] != version:
        newest = "none" if heading is None else heading[1]
        return (
            f"the newest version of CHANGELOG.md is {newest}, and that of remotely/__init__.py"
            f" {version}: head its part `## [{version}] - YEAR-MONTH-DAY`"
        )
    if f"v{version}" not in tags:
        return f"this commit has no tag v{version}, but {', '.join(tags) or 'none'}"
    return ""


def build(folder: Path) -> dict[str, str]:
    """Build into a folder; return the hash of each file."""
    for target in TARGETS:
        command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def output(*command: str) -> list[str]:
    """Return the lines that a command prints."""
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def main() -> None:
    tags, changed = output("git", "tag", "--points-at"), output("git", "status", "--porcelain")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    why_not = obstacle(remotely.__version__, tags, changelog, [line[3:] for line in changed])
    if why_not:
        sys.exit(f"no release: {why_not}")
    if DIST.exists():
        sys.exit(f"no release: {DIST} exists; remove it")
    first, second = build(DIST), build(DIST)
    if first != second:
        sys.exit(f"no release: two builds differ: {first} and {second}")
    for name, digest in sorted(first.items()):
        print(f"{digest}  dist/{name}")
    print(f"Push the tag to publish it: git push origin v{remotely.__version__}")


if __name__ == "__main__":
    main()
