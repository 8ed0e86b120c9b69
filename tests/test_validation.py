"""Scripts of validation/ are listed, run, resumed and counted; stored results have their date and commit."""

import importlib
import json
import math
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from docs import _results
from tests.conftest import PATIENCE, ROOT, interrupted
from validation.__main__ import main
from validation._tools import catalog
from validation._tools.resumable import hash_origin
from validation._tools.sign_tests import LEVEL, find_decision, sequential_p_values
from validation.speed import waiting_times

SCRIPTS = catalog.scripts()
STORED = sorted((catalog.ROOT / "results").glob("*.json"))
RESULTS = [path for path in STORED if not path.stem.endswith(("_quick", "_parts"))]
FAKE = '''"""A fake script."""
import json, sys
from pathlib import Path

out = Path(sys.argv[sys.argv.index("--out") + 1])
end = "_quick" * ("--quick" in sys.argv)
with (out / "ran").open("a") as file:
    file.write(Path(__file__).stem + " ")
{more}
(out / f"{{Path(__file__).stem}}{{end}}.json").write_text(json.dumps({{"held": {held}, "failed": {failed}}}))
print("words")
sys.exit({status})
'''
MORE = {
    "raises": "if not (out / 'mended').exists(): raise RuntimeError('broken')",
    "sleeps": "from validation._tools.report import quiet_interrupts; import time\n"
    f"quiet_interrupts(); time.sleep(0 if (out / 'mended').exists() else {PATIENCE})",
}


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
                code = FAKE.format(held=["one"], failed=failed, status=int(bool(failed)), more=MORE.get(name, ""))
                (root / group / f"{name}.py").write_text(code)
        return lambda *words: main([*words, "--out", str(out)])

    write.out = out
    return write


def parse_table(text):
    """Return the lines of a table, by their first word."""
    return {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.split()}


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
    assert len(set(names)) == len(names) > 20
    assert set(catalog.GROUPS).isdisjoint(names)
    paths = [path for script in SCRIPTS for path in script.results(catalog.ROOT / "results")]
    assert sorted(paths) == RESULTS


def test_the_manual_has_every_script_in_its_group():
    sections = re.split(r"^## ", _results.build_index(), flags=re.MULTILINE)[1:]
    listed = {}
    for section in sections:
        (group,) = re.findall(r"`python -m validation (\w+)`", section)
        listed[group] = re.findall(r"^\| \[`(\w+)`\]\(generated/validation/\1\.md\) \| \S", section, re.MULTILINE)
        assert re.findall(r"^generated/validation/(\w+)$", section, re.MULTILINE) == listed[group]
    expected = {group: [script.name for script in SCRIPTS if script.group == group] for group in catalog.GROUPS}
    assert listed == expected


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_can_be_imported(script):
    assert callable(importlib.import_module(script.module).main)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results_have_date_versions_and_commit(path):
    result = json.loads(path.read_text())
    assert {"gamp_attention", "numpy", "scipy", "numba"} <= set(result["versions"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", result["when"])
    assert re.fullmatch(r"[0-9a-f]{10}(\+| \(from history\))?", result["commit"])
    assert len(result["held"]) + len(result["failed"]) > 0


def test_the_table_counts_checks(scripts, capfd):
    run = scripts(claims=["holds"], speed=["fails"])
    assert run("all", "--quick") == 1
    table = parse_table(capfd.readouterr().out)
    assert table["holds"][:2] == ["1", "0"]
    assert table["holds"][-1] == "holds"
    assert table["fails"][:2] == ["1", "2"]
    assert table["fails"][-1] == "fails"
    assert table["2"][-4:] == ["1", "of", "2", "hold"]
    assert (scripts.out / "fails_quick.json").exists()


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


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_finished_scripts_are_not_run_again(scripts, capfd, jobs):
    run = scripts(paper=["fails"], claims=["raises"], speed=["holds"])
    assert run("all", "--jobs", jobs) == 1
    output = capfd.readouterr().out
    assert "no verdict, exit status 1" in output
    (scripts.out / "mended").touch()
    (scripts.out / "ran").write_text("")
    assert run("speed") == 0
    assert run("all") == 1
    assert (scripts.out / "ran").read_text().split() == ["holds", "raises"]
    table = parse_table(capfd.readouterr().out)
    assert [table[name][-1] for name in ("fails", "raises", "holds")] == ["fails", "holds", "holds"]
    assert run("all") == 1  # nothing was left
    assert sorted((scripts.out / "ran").read_text().split()) == sorted(2 * ["holds", "raises"] + ["fails"])


def test_jobs_write_logs_and_run_other_commands(scripts, capfd):
    run = scripts(claims=["holds"], speed=["raises"])
    assert run("all", "--jobs", "2", "--beside", "types=echo $OMP_NUM_THREADS", "--beside", "wheel=exit 3") == 1
    output = capfd.readouterr().out
    assert "RuntimeError: broken" in output
    assert "words" not in output
    assert (scripts.out / "logs" / "holds.log").read_text() == "words\n"
    assert (scripts.out / "logs" / "types.log").read_text() == "1\n"
    table = parse_table(output[output.index("script ") :])
    assert table["types"][-1] == "holds"
    assert table["wheel"][-3:] == ["exit", "status", "3"]


def test_scripts_without_a_picture_are_not_drawn(scripts, capfd):
    run = scripts(paper=["holds"])
    (catalog.ROOT / "paper" / "figure.py").write_text("import sys; print('--draw')\n")
    assert run("all", "--draw") == 0
    assert not (scripts.out / "ran").exists()
    table = parse_table(capfd.readouterr().out)
    assert table["figure"][-1] == "drawn"
    assert table["holds"][-4:] == ["draws", "nothing", "by", "itself"]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interrupted_run_prints_one_line_and_resumes(scripts, jobs, start):
    scripts(paper=["holds"], speed=["sleeps"])
    code = (
        "import sys; from pathlib import Path; from validation._tools import catalog\n"
        "catalog.ROOT = Path(sys.argv[1]); from validation.__main__ import main; sys.exit(main(sys.argv[2:]))"
    )
    words = ["all", "--jobs", jobs, "--out", str(scripts.out)]
    command = ["-c", code, str(catalog.ROOT), *words]
    process = start(*command)
    ran, finished = scripts.out / "ran", scripts.out / "logs" / "unfinished.json"
    while not (finished.exists() and "holds" in finished.read_text() and "sleeps" in ran.read_text()):
        assert process.poll() is None  # "sleeps" is likely to be at its imports
        time.sleep(0.05)
    err = interrupted(process)
    assert len(err.strip().splitlines()) == 1
    assert "run the same command again" in err
    (scripts.out / "mended").touch()
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "finished before: holds" in done.stdout
    assert sorted(ran.read_text().split()) == ["holds", "sleeps", "sleeps"]


def test_stored_trials_are_found_after_a_module_has_moved():
    """Compare hashes with hashes of before the scripts had folders; functions of a script are in `__main__`."""
    from validation.paper._architectures.instances import descents
    from validation.paper._architectures.theory import crossing, point

    known = {
        descents: "057e3d4a909598999cb299f9",
        point: "bacce78537e627b5127bdd19",
        crossing: "30d025b7270489a4db129839",
    }
    assert {function: hash_origin(function) for function in known} == known


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


def test_waiting_times_keep_the_rows_of_parts_that_are_not_measured(tmp_path, monkeypatch):
    rows = {f"a default run over one of L-BFGS-B, L = {L}": (0.1, 0.1 * L) for L in (3, 5)}
    stored = {"long samples": dict.fromkeys(rows, (1.0, 1.0)), "diagram": {"boundaries at one ω": [2.0, 1.0]}}
    about = {"versions": {}, "when": "", "held": [], "failed": []}
    (tmp_path / "waiting_times.json").write_text(json.dumps(about | stored))
    monkeypatch.setattr(waiting_times, "measure_long_samples", lambda quick: rows)
    monkeypatch.setattr("sys.argv", ["waiting_times", "--out", str(tmp_path), "--parts", "long samples"])
    with pytest.raises(SystemExit):
        waiting_times.main()
    numbers = catalog.load_result(tmp_path / "waiting_times.json")
    assert numbers["diagram"] == stored["diagram"]
    assert numbers["long samples"] == {name: list(pair) for name, pair in rows.items()}
    assert len(numbers["failed"]) == 3  # the two ratios of the new rows, and the stored row
    assert "boundaries at one ω" in (tmp_path / "waiting_times.md").read_text()


def test_tests_that_stop_when_decided_keep_their_level():
    """Draw fair signs, of which at most a fraction LEVEL of the sequences may ever be rejected."""
    signs = np.random.default_rng(0).choice([-1, 0, 1], (2000, 150))
    rejected = np.mean([find_decision(each, LEVEL) is not None for each in signs])
    assert 0.005 < rejected < LEVEL
    # the mixture with Beta(1/2, 1/2) gives k equal signs the probability C(2k, k)/4^k
    assert sequential_p_values(10 * [1])[-1] == pytest.approx(2**10 / math.comb(20, 10))
    assert find_decision([0, 0] + 20 * [1], LEVEL / 7) == 12
    assert find_decision(20 * [-1, 0, 1], LEVEL) is None
