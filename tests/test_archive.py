"""Stored results match their checksums; the data archive is complete, reproducible and has valid metadata."""

import hashlib
import json
import re
import shutil
import subprocess
import tarfile

import pytest

from tests.conftest import ROOT
from validation.__main__ import main
from validation._tools import catalog, checksums

RESULTS = catalog.ROOT / "results"
# fields and values of Zenodo's deposit metadata, see github.com/zenodraft/metadata-schema-zenodo
FIELDS = {"title", "version", "upload_type", "access_right", "license", "creators", "description", "language",
          "keywords", "related_identifiers"}  # fmt: skip
RELATED = {"relation": {"isSupplementTo", "references"}, "scheme": {"arxiv", "url", "doi"},
           "resource_type": {"publication-conferencepaper", "software", "dataset"}}  # fmt: skip


def test_checksums_of_stored_results_are_current():
    """If this fails after storing results, run `python -m validation --sums`."""
    assert checksums.find_differences(RESULTS) == []
    assert {path.name for path in RESULTS.glob("*.json")} >= {f"{name}.json" for name in ("figure2", "values")}
    assert len(checksums.read_sums(RESULTS)) > 100


def test_differences_are_listed_by_name(tmp_path, capsys):
    for name in ("a.json", "b.png", "c.md", "fast_quick.json", "some_quick_runs.jsonl", "many_parts.json", ".d"):
        (tmp_path / name).write_text(name)
    (tmp_path / "cells").mkdir()
    assert main(["--sums", "--out", str(tmp_path)]) == 0
    assert list(checksums.read_sums(tmp_path)) == ["a.json", "b.png", "c.md"]
    assert main(["--sums", "check", "--out", str(tmp_path)]) == 0
    (tmp_path / "a.json").write_text("other")
    (tmp_path / "b.png").unlink()
    (tmp_path / "new.md").touch()
    capsys.readouterr()
    assert main(["--sums", "check", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[:3] == ["a.json: changed", "b.png: missing", "new.md: not listed"]
    assert checksums.write_sums(tmp_path) == ["a.json: changed", "b.png: missing", "new.md: not listed"]
    assert checksums.find_differences(tmp_path) == []


def check_metadata(deposit):
    """Check that every field belongs to Zenodo's deposit metadata, with a valid value."""
    assert set(deposit) <= FIELDS
    assert deposit["upload_type"] in ("software", "dataset")
    assert deposit["access_right"] == "open"
    assert re.fullmatch("[a-z]{2,3}", deposit["language"])
    assert all(set(creator) <= {"name", "affiliation", "orcid"} and creator["name"] for creator in deposit["creators"])
    for related in deposit["related_identifiers"]:
        assert related.keys() - {"identifier"} == RELATED.keys()
        assert all(related[name] in words for name, words in RELATED.items())


def test_metadata_of_the_release_are_valid_and_agree_with_the_citation():
    deposit, citation = json.loads((ROOT / ".zenodo.json").read_text()), (ROOT / "CITATION.cff").read_text()
    check_metadata(deposit)
    assert re.findall(r'^  - name: "(.*)"$', citation, re.MULTILINE) == [c["name"] for c in deposit["creators"]]
    assert re.findall(r"^  - ([a-z ]+)$", citation, re.MULTILINE) == deposit["keywords"]
    (paper,) = (r["identifier"] for r in deposit["related_identifiers"] if r["relation"] == "isSupplementTo")
    assert f'value: "{paper}"' in citation


@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="needs a checkout of git")
def test_the_archive_is_complete_and_reproducible(tmp_path):
    for name in ("one", "two"):
        subprocess.run(["bash", ".ci/archive", tmp_path / name], cwd=ROOT, check=True, capture_output=True)
    archive, twin = (next((tmp_path / name).glob("*.tar.gz")) for name in ("one", "two"))
    assert archive.read_bytes() == twin.read_bytes()
    metadata = json.loads(next((tmp_path / "one").glob("*.json")).read_text())["metadata"]
    check_metadata(metadata)
    assert metadata["upload_type"] == "dataset"

    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    with tarfile.open(archive) as tar:
        files = {m.name.partition("/")[2]: tar.extractfile(m).read() for m in tar.getmembers() if m.isfile()}
    committed = git("ls-tree", "-r", "--name-only", "HEAD", "validation/results", "validation/paper/_published").split()
    assert set(files) == {*committed, "README.md", ".ci/lock.txt", "CITATION.cff", "LICENSE"}
    listed = dict(reversed(line.split("  ")) for line in files["validation/results/SHA256SUMS"].decode().splitlines())
    assert {f"validation/results/{name}" for name in [*listed, "SHA256SUMS"]} < set(files)
    for name, digest in listed.items():
        assert hashlib.sha256(files[f"validation/results/{name}"]).hexdigest() == digest
    readme = files["README.md"].decode()
    assert git("rev-parse", "HEAD").strip() in readme
    assert all(script.name in readme for script in catalog.scripts())
