"""What a release says of itself in several files is the same in all: version, license, dependencies, checks."""

import json
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import gamp_attention as ga
from tests.conftest import ROOT

# SPEC 0 of the last quarter of 2026: the oldest versions that it asks for, of packages that it covers
SPEC_0 = {"python": "3.13", "numpy": "2.2", "scipy": "1.15"}


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def project():
    return tomllib.loads(text("pyproject.toml"))["project"]


def needed(section):
    """name → oldest version of the lines `- name >=version` of the conda recipe's section."""
    part = re.search(rf"^  {section}:\n((?:    - .*\n)+)", text(".conda/recipe.yaml"), re.MULTILINE)[1]
    return dict(re.findall(r"- ([\w-]+) >=([\d.]+)", part))


def oldest(requirements):
    found = map(Requirement, requirements)
    return {each.name: next(s.version for s in each.specifier if s.operator == ">=") for each in found}


def test_the_version_is_in_one_place_and_said_alike():
    assert re.search(r'^__version__ = "(.*)"$', text("gamp_attention/_version.py"), re.MULTILINE)[1] == ga.__version__
    assert re.search(r"^version: (.*)$", text("CITATION.cff"), re.MULTILINE)[1] == ga.__version__
    assert json.loads(text(".zenodo.json"))["version"] == ga.__version__
    assert re.search(r'^  version: "(.*)"$', text(".conda/recipe.yaml"), re.MULTILINE)[1] == ga.__version__
    headings = re.findall(r"^## (\S+)( \(unreleased\)| \(\d{4}-\d\d-\d\d\))$", text("CHANGELOG.md"), re.MULTILINE)
    assert headings[0][0] == ga.__version__
    versions = [Version(version) for version, _ in headings]
    assert versions == sorted(versions, reverse=True)


def test_title_license_and_keywords_are_said_alike(project):
    deposit, citation, recipe = json.loads(text(".zenodo.json")), text("CITATION.cff"), text(".conda/recipe.yaml")
    assert f'title: "{deposit["title"]}"' in citation
    assert deposit["keywords"] == project["keywords"]
    assert deposit["license"] == project["license"]
    assert f"license: {project['license']}\n" in citation
    assert f"license: {project['license']}\n" in recipe
    assert f'summary: "{project["description"]}"' in recipe
    assert {"title", "upload_type", "description", "creators", "access_right"} <= set(deposit)


def test_the_conda_recipe_needs_what_the_wheel_needs(project):
    python = {"python": project["requires-python"].removeprefix(">=")}
    assert needed("run") == python | oldest(project["dependencies"])
    extras = project["optional-dependencies"]
    renamed = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    wanted = oldest([*extras["torch"], *extras["plot"], *extras["sklearn"]])
    assert needed("run_constraints") == {renamed.get(name, name): version for name, version in wanted.items()}
    assert f"{project['name']} = {project['scripts'][project['name']]}" in text(".conda/recipe.yaml")


def test_locked_versions_are_all_that_is_needed_and_allowed(project):
    lines = [line for line in text(".ci/lock.txt").splitlines() if not line.startswith("#")]
    locked = dict(line.split("==") for line in lines)
    assert lines == [f"{name}=={version}" for name, version in sorted(locked.items())]
    extras = project["optional-dependencies"].values()
    for each in map(Requirement, [*project["dependencies"], *(line for extra in extras for line in extra)]):
        name = each.name.lower().replace("_", "-")
        assert each.specifier.contains(locked[name]), each


def test_versions_reach_at_least_as_far_back_as_spec_0(project):
    have = oldest(project["dependencies"]) | {"python": project["requires-python"].removeprefix(">=")}
    assert all(Version(have[name]) <= Version(version) for name, version in SPEC_0.items())
    start = text("docs/start.md")
    for name, version in have.items():
        if name in ("python", "numpy", "numba", "scipy"):
            assert re.search(rf"{name} {re.escape(version)}", start, re.IGNORECASE)


def test_workflows_run_what_there_is():
    workflow = text(".github/workflows/ci.yml")
    scripts = re.findall(r"bash (\.ci/\w+)", workflow)
    assert {".ci/run", ".ci/versions", ".ci/release", ".ci/validate", ".ci/first_steps"} == set(scripts)
    named = re.findall(r"tests/[\w/.]+", workflow)
    assert len(named) > 3
    assert [name for name in [*scripts, *named] if not (ROOT / name).exists()] == []
