"""Scripts of validation/ are listed, run and counted; stored results have date, commit and current checksums."""

import importlib
import json
import re

import pytest

from validation.__main__ import main
from validation._tools import catalog, checksums
from validation._tools.resumable import run_trials

SCRIPTS = catalog.scripts()
FOLDER = catalog.ROOT / "results"
STORED = sorted(FOLDER.glob("*.json"))
RESULTS = [path for path in STORED if not path.stem.endswith(("_quick", "_parts"))]
FAKE = '''"""A fake script."""
import json, sys
from pathlib import Path

out = Path(sys.argv[sys.argv.index("--out") + 1])
end = "_quick" * ("--quick" in sys.argv)
with (out / "ran").open("a") as file:
    file.write(Path(__file__).stem + " ")
(out / f"{{Path(__file__).stem}}{{end}}.json").write_text(json.dumps({{"held": {held}, "failed": {failed}}}))
print("words")
sys.exit({status})
'''


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """Return a function that writes fake scripts by group and returns a command line that runs them."""
    root, out = tmp_path / "fakes", tmp_path / "out"
    monkeypatch.setattr(catalog, "ROOT", root)

    def write(**groups):
        for group in catalog.GROUPS:
            (root / group).mkdir(parents=True)
            (root / group / "__init__.py").write_text(f'"""About {group}."""\n')
            for name in groups.get(group, ()):
                failed = ["two", "three"] if name == "fails" else []
                code = FAKE.format(held=["one"], failed=failed, status=int(bool(failed)))
                (root / group / f"{name}.py").write_text(code)
        return lambda *words: main([*words, "--out", str(out)])

    write.out = out
    return write


def test_every_script_is_listed_with_its_stored_results(capsys):
    assert main([]) == 0
    listed = capsys.readouterr().out.splitlines()
    for path in RESULTS:
        (line,) = (line for line in listed if line.split()[:1] == [path.stem])
        result = catalog.load_result(path)
        assert f"{len(result['held'])} held {len(result['failed']):3} failed" in line
    for script in SCRIPTS:
        title = script.description.splitlines()[0]
        assert any(line.endswith(title) for line in listed)


def test_every_result_belongs_to_a_script():
    names = [script.name for script in SCRIPTS]
    assert len(set(names)) == len(names) <= 45
    assert set(catalog.GROUPS) & set(names) <= {"speed"}  # the only script of its group
    paths = [path for script in SCRIPTS for path in script.results(catalog.ROOT / "results")]
    assert sorted(paths) == RESULTS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_can_be_imported(script):
    assert callable(importlib.import_module(script.module).main)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results_have_date_versions_commit_and_reasons_of_failed_checks(path):
    result = json.loads(path.read_text())
    assert {"gamp_attention", "numpy", "scipy", "numba"} <= set(result["versions"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", result["when"])
    assert re.fullmatch(r"[0-9a-f]{10}(\+| \(from history\))?", result["commit"])
    assert len(result["held"]) + len(result["failed"]) > 0
    assert all("(reason: " in claim for claim in result["failed"])


def test_groups_and_names_select_scripts(scripts, capfd):
    run = scripts(paper=["first"], claims=["holds", "other"])
    assert run("claims", "first", "other") == 0
    assert (scripts.out / "ran").read_text().split() == ["holds", "other", "first"]
    with pytest.raises(SystemExit) as ended:
        run("nothing")
    assert ended.value.code == 2
    assert "got nothing, need names of scripts or groups (paper, claims, speed), or all" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        run("all", "--jobs", "0")
    assert "got 0, need a positive whole number" in capfd.readouterr().err


def square(x):
    """Return a trial, which fails for negative numbers."""
    if x < 0:
        raise ValueError("negative")
    CALLS.append(x)
    return {"square": x * x}


CALLS = []


def test_stored_trials_are_not_computed_again(tmp_path, capsys):
    for _ in range(2):
        rows = run_trials(tmp_path / "cells", square, [{"x": x} for x in (1, 2, -1)])
        assert [(row["x"], row["square"]) for row in rows] == [(1, 1), (2, 4)]
    assert CALLS == [1, 2]
    assert "ValueError: negative" in capsys.readouterr().out


def test_folders_with_other_files_raise_an_error(tmp_path, scripts, capsys):
    """Accept a new or empty folder for results, and refuse a folder with other files."""
    scripts(paper=["good"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.json").write_text('{"held": 1}')
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path / "mine"), "all"])
    assert ended.value.code == 2
    assert "--out: needs a new or empty folder, or one of earlier results" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.json"]


def test_checksums_of_stored_results_are_current():
    """If this fails after storing results, run `python -m validation --sums`."""
    assert checksums.find_differences(FOLDER) == []
    assert {path.name for path in FOLDER.glob("*.json")} >= {f"{name}.json" for name in ("figure2", "published")}
    assert len(checksums.read_sums(FOLDER)) > 100


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
