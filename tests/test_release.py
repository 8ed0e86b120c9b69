"""Consistency of the files of a release: version, address, dependencies and workflows."""

import json
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import gamp_attention as ga
from tests.conftest import ROOT


def read_text(name):
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def project():
    return tomllib.loads(read_text("pyproject.toml"))["project"]


def read_requirements(section):
    """Return {name: oldest version} of the lines `- name >=version` in a section of the conda recipe."""
    part = re.search(rf"^  {section}:\n((?:    - .*\n)+)", read_text(".conda/recipe.yaml"), re.MULTILINE)[1]
    return dict(re.findall(r"- ([\w-]+) >=([\d.]+)", part))


def oldest_versions(requirements):
    parsed = map(Requirement, requirements)
    return {
        requirement.name: next(s.version for s in requirement.specifier if s.operator == ">=") for requirement in parsed
    }


def test_all_files_state_the_same_version():
    assert (
        re.search(r'^__version__ = "(.*)"$', read_text("gamp_attention/_version.py"), re.MULTILINE)[1] == ga.__version__
    )
    assert re.search(r"^version: (.*)$", read_text("CITATION.cff"), re.MULTILINE)[1] == ga.__version__
    assert json.loads(read_text(".zenodo.json"))["version"] == ga.__version__
    assert re.search(r'^  version: "(.*)"$', read_text(".conda/recipe.yaml"), re.MULTILINE)[1] == ga.__version__
    headings = re.findall(r"^## (\S+)( \(unreleased\)| \(\d{4}-\d\d-\d\d\))$", read_text("CHANGELOG.md"), re.MULTILINE)
    assert headings[0][0] == ga.__version__
    versions = [Version(version) for version, _ in headings]
    assert versions == sorted(versions, reverse=True)


def test_all_files_state_the_same_repository_and_authors(project):
    repository, citation = project["urls"]["Repository"], read_text("CITATION.cff")
    assert all(url.startswith(repository) for url in project["urls"].values())
    for name in ("repository-code", "url"):
        assert f'{name}: "{repository}"' in citation
    files = ["README.md", "CHANGELOG.md", ".conda/recipe.yaml", ".github/CONTRIBUTING.md"]
    files += [str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")]
    urls = {url for file in files for url in re.findall(r"https://[\w.]+/[\w-]+/gamp_attention\b", read_text(file))}
    assert urls == {repository}
    (author,) = project["authors"]
    assert re.findall(r'^  - name: "(.*)"$', citation, re.MULTILINE) == [author["name"]]
    assert "@" in author["email"]


def test_the_conda_recipe_has_the_dependencies_of_the_wheel(project):
    python = {"python": project["requires-python"].removeprefix(">=")}
    assert read_requirements("run") == python | oldest_versions(project["dependencies"])
    extras = project["optional-dependencies"]
    renamed = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    optional = oldest_versions([*extras["torch"], *extras["plot"], *extras["sklearn"]])
    assert read_requirements("run_constraints") == {
        renamed.get(name, name): version for name, version in optional.items()
    }
    assert f"{project['name']} = {project['scripts'][project['name']]}" in read_text(".conda/recipe.yaml")


def test_locked_versions_satisfy_all_dependencies(project):
    lines = [line for line in read_text(".ci/lock.txt").splitlines() if not line.startswith("#")]
    locked = dict(line.split("==") for line in lines)
    assert lines == [f"{name}=={version}" for name, version in sorted(locked.items())]
    extras = project["optional-dependencies"].values()
    for requirement in map(Requirement, [*project["dependencies"], *(line for extra in extras for line in extra)]):
        name = requirement.name.lower().replace("_", "-")
        assert requirement.specifier.contains(locked[name]), requirement


def test_workflows_run_existing_scripts_and_tests():
    workflow = read_text(".github/workflows/ci.yml")
    scripts = re.findall(r"bash (\.ci/\w+)", workflow)
    assert {".ci/core", ".ci/run", ".ci/versions", ".ci/release", ".ci/validate", ".ci/first_hour"} == set(scripts)
    named = re.findall(r"tests/[\w/.]+", workflow)
    assert len(named) > 3
    assert [name for name in [*scripts, *named] if not (ROOT / name).exists()] == []
