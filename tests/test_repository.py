"""Consistency of the repository: commands, links, pins, packaging."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import remotely

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("remotely", "remotely_rl")
DECISIONS = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))
DECISION_PAGES = [f"docs/decisions/{name}" for name in DECISIONS]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
    *sorted(f"docs/lab/{path.name}" for path in (ROOT / "docs" / "lab").glob("*.md")),
    "docs/decisions/README.md",
    *DECISION_PAGES,
)

# Written so that no pattern matches this file.
MACHINE_WORDS = {
    "a host of a package registry": r"\b(pypi|pythonhosted|download\.pytorch|anaconda)\.org",
    "a registry's setting": r"index[-_]url|find[-]links|trusted[-]host",
    "a path of somebody's machine": r"/ho[m]e/\w+/|/roo[t]/|/Use[r]s/\w+/|(?<![\w.~])/wor[k]/",
}


@cache
def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def tracked_files() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [path for path in listed.stdout.splitlines() if (ROOT / path).is_file()]


def dependency_lines() -> list[str]:
    """Return the lines of pyproject.toml with dependencies for running, building or testing."""
    lists = re.findall(
        r"^(?:dependencies|rl|docs|dev) = \[\n(.*?)^\]",
        text_of("pyproject.toml"),
        re.DOTALL | re.MULTILINE,
    )
    assert len(lists) == 4
    return [line.strip() for lines in lists for line in lines.splitlines()]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> list[tuple[str, str]]:
    """Return the packages and versions of constraints.txt."""
    lines = text_of("constraints.txt").splitlines()
    pinned = [line.split("==") for line in lines if line and not line.startswith("#")]
    return [(canonical(name), version) for name, version in pinned]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", text_of("Makefile"), re.MULTILINE))


def code_in(page: str) -> list[str]:
    """Return the code in a page: indented blocks, and text between backticks."""
    text = text_of(page)
    return [
        *re.findall(r"^ {4}(\S.*)$", text, re.MULTILINE),
        *re.findall(
            r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        ),
    ]


# --- packaging ------------------------------------------------------------------------------------


def test_every_dependency_has_a_lower_bound_and_a_reason() -> None:
    form = re.compile(r'"[A-Za-z0-9-]+>=[0-9.]+",\s+# .{10,}')
    assert [line for line in dependency_lines() if not form.fullmatch(line)] == []


def test_every_direct_dependency_is_pinned_within_its_range() -> None:
    versions = dict(pins())
    for name, lowest in re.findall(r'"([A-Za-z0-9-]+)>=([0-9.]+)"', "".join(dependency_lines())):
        assert numbers(versions[canonical(name)]) >= numbers(lowest), name


def numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def test_a_package_is_pinned_once() -> None:
    assert len(dict(pins())) == len(pins())


@pytest.mark.parametrize("package", PACKAGES)
def test_the_package_is_marked_as_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


def test_install_hints_use_the_name_of_this_distribution() -> None:
    """The package index has another project of the name `remotely`."""
    other = re.compile(r"install [\"']?remotely(?!-actors|[-_\w])")
    files = [path for path in tracked_files() if path.endswith((".py", ".md", ".toml"))]
    wrong = [path for path in files if other.search(text_of(path)) and "0040-the" not in path]
    assert wrong == []


def test_the_changelog_has_the_version_of_the_package() -> None:
    assert f" {remotely.__version__}" in text_of("CHANGELOG.md")


def test_the_licence_is_the_one_in_the_metadata() -> None:
    assert 'license = "Apache-2.0"' in text_of("pyproject.toml")
    assert "Apache License\n                           Version 2.0" in text_of("LICENSE")


# --- commands -------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_make_command_of_a_page_is_a_target(page: str) -> None:
    used = {
        word
        for code in code_in(page)
        if code.startswith("make ")
        for word in code.split("#")[0].split()[1:]
        if "=" not in word
    }
    assert used
    assert used <= make_targets()


def test_make_lists_every_public_target() -> None:
    shown = subprocess.run(["make"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    listed = set(re.findall(r"^  make ([a-z-]+)", shown, re.MULTILINE))
    assert listed == make_targets() - {"types"}


def test_ci_runs_the_checks_and_then_the_tests() -> None:
    script = ROOT / ".ci" / "run"
    commands = [line for line in text_of(".ci/run").splitlines() if line.startswith("make ")]
    assert commands == ["make check", "make test"]
    assert script.stat().st_mode & 0o111


# --- pages ----------------------------------------------------------------------------------------


def test_every_link_of_a_page_leads_to_a_file() -> None:
    broken = [
        (page, link)
        for page in PAGES
        for link in re.findall(r"\]\(([^)#]+)\)", text_of(page))
        if not link.startswith("https://") and not (ROOT / page).parent.joinpath(link).exists()
    ]
    assert broken == []


def test_every_file_that_a_page_names_exists() -> None:
    named = re.compile(
        r"(?:remotely|remotely_rl|docs|examples|tests|tools)/[\w/]*(?:\.\w+)?|[\w-]+\.(?:md|toml|txt)"
    )
    missing = [
        (page, code)
        for page in PAGES
        for code in code_in(page)
        if named.fullmatch(code) and not (ROOT / code).exists()
    ]
    assert missing == []


def python_blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)


def test_python_in_a_page_is_python() -> None:
    for page in PAGES:
        for block in python_blocks(page):
            compile(block, page, "exec")


def test_the_readme_names_the_pinned_torch() -> None:
    assert f"`torch=={dict(pins())['torch']}`" in text_of("README.md")


def test_the_first_example_of_the_readme_has_at_most_fifteen_lines() -> None:
    assert sum(bool(line.strip()) for line in python_blocks("README.md")[0].splitlines()) <= 15


@pytest.mark.parametrize("page", DECISION_PAGES)
def test_a_decision_has_a_date_a_status_and_all_sections(page: str) -> None:
    head = re.match(
        r"# (\d{4})\. (.+)\n\nDate: 20\d\d-\d\d-\d\d(, .+)?\nStatus: (accepted|superseded)",
        text_of(page),
    )
    assert head is not None
    assert Path(page).name.startswith(f"{head[1]}-")
    sections = re.split(r"^## (.+)\n", text_of(page), flags=re.MULTILINE)[1:]
    assert sections[::2] == ["Context", "Decision", "Refused alternatives", "Consequences"]
    assert all(section.strip() for section in sections[1::2])
    assert re.search(r"^- .+", sections[5], re.MULTILINE)


def test_decisions_are_numbered_without_a_gap() -> None:
    assert [int(name[:4]) for name in DECISIONS] == list(range(1, len(DECISIONS) + 1))


@cache
def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in headings}


def test_every_link_to_a_heading_leads_to_one() -> None:
    broken = [
        f"{page}: {file}#{anchor}"
        for page in PAGES
        for file, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", text_of(page))
        if anchor not in anchors_of((ROOT / page).parent / file if file else ROOT / page)
    ]
    assert broken == []


@pytest.mark.parametrize("what", MACHINE_WORDS)
def test_no_tracked_file_depends_on_a_machine_or_a_registry(what: str) -> None:
    pattern = re.compile(MACHINE_WORDS[what])
    found = []
    for path in tracked_files():
        try:
            text = text_of(path)
        except UnicodeDecodeError:
            continue  # a picture
        found += [f"{path}: {match[0]}" for match in pattern.finditer(text)]
    assert found == []


def test_the_generated_tables_are_up_to_date() -> None:
    subprocess.run([sys.executable, ROOT / "tools" / "tables.py", "--check"], check=True)
