"""Consistency of the files of a release: version, title, license, dependencies and workflows."""

import json
import re
import runpy
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import gamp_attention as ga
from tests.conftest import ROOT

# oldest versions that SPEC 0 requires to be supported in the last quarter of 2026, of the packages that it covers
SPEC_0 = {"python": "3.13", "numpy": "2.2", "scipy": "1.15"}


def read_text(name):
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def configuration():
    return tomllib.loads(read_text("pyproject.toml"))


@pytest.fixture(scope="module")
def project(configuration):
    return configuration["project"]


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


def test_all_files_state_the_same_title_license_and_keywords(project):
    deposit, citation, recipe = (
        json.loads(read_text(".zenodo.json")),
        read_text("CITATION.cff"),
        read_text(".conda/recipe.yaml"),
    )
    assert f'title: "{deposit["title"]}"' in citation
    assert deposit["keywords"] == project["keywords"]
    assert deposit["license"] == project["license"]
    assert f"license: {project['license']}\n" in citation
    assert f"license: {project['license']}\n" in recipe
    assert f'summary: "{project["description"]}"' in recipe
    assert {"title", "upload_type", "description", "creators", "access_right"} <= set(deposit)


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


def test_the_citation_has_the_date_of_the_changelog():
    date = re.search(r"^## \S+ \((.*)\)$", read_text("CHANGELOG.md"), re.MULTILINE)[1]
    stated = re.findall(r'^date-released: "(.*)"$', read_text("CITATION.cff"), re.MULTILINE)
    assert stated == ([] if date == "unreleased" else [date])


def test_the_description_on_package_indexes_has_absolute_links(project):
    pytest.importorskip("setuptools")
    description = runpy.run_path(str(ROOT / "setup.py"))["read_description"]()
    links = re.findall(r"\]\(([^)]*)\)", description)
    assert [link for link in links if not link.startswith("https://")] == []
    own = [link.removeprefix(project["urls"]["Repository"]) for link in links if project["urls"]["Repository"] in link]
    files = [re.fullmatch(r"/(?:blob|raw)/\w+/([^#]*)(?:#.*)?", link)[1] for link in own]
    assert len(files) == len(re.findall(r"\]\((?!https?:)[^)]", read_text("README.md")))
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_all_settings_name_the_oldest_python(configuration, project):
    oldest = project["requires-python"].removeprefix(">=")
    classifiers = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line) for line in project["classifiers"]]
    listed = [match[1] for match in classifiers if match]
    assert listed == [f"3.{minor}" for minor in range(int(oldest[2:]), int(listed[-1][2:]) + 1)]
    assert configuration["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    assert configuration["tool"]["mypy"]["python_version"] == oldest
    assert f"python {oldest}.*" in read_text(".conda/recipe.yaml")
    assert f'"{oldest}"' in read_text(".github/workflows/ci.yml")


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


def test_supported_versions_include_the_versions_of_spec_0(project):
    supported = oldest_versions(project["dependencies"]) | {"python": project["requires-python"].removeprefix(">=")}
    assert all(Version(supported[name]) <= Version(version) for name, version in SPEC_0.items())
    course = read_text("docs/course.md")
    for name, version in supported.items():
        if name in ("python", "numpy", "numba", "scipy"):
            assert re.search(rf"{name}\s{re.escape(version)}", course, re.IGNORECASE)


def test_workflows_run_existing_scripts_and_tests():
    workflow = read_text(".github/workflows/ci.yml")
    scripts = re.findall(r"bash (\.ci/\w+)", workflow)
    assert {".ci/core", ".ci/run", ".ci/versions", ".ci/release", ".ci/validate", ".ci/first_hour"} == set(scripts)
    named = re.findall(r"tests/[\w/.]+", workflow)
    assert len(named) > 3
    assert [name for name in [*scripts, *named] if not (ROOT / name).exists()] == []
