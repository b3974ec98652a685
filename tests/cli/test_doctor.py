"""`memfit doctor` says whether memfit can work here."""

from __future__ import annotations

import json

import pytest

from cli.helpers_cli import memfit, run
from memfit.cli import main
from memfit.files import find_machine, load_machine
from memfit.running.engine.tiers import TierSpec
from memfit.running.machine.doctor import _link, _plans

pytestmark = pytest.mark.timeout(300)


@pytest.mark.long
def test_all_is_well_here(tmp_path):
    result = memfit("doctor", "--tier", f"disk:{tmp_path}", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    names = "memfit python torch compiler engine plans disk link"
    assert [line.split()[1] for line in lines] == names.split()
    assert all(line.startswith("ok ") for line in lines)
    assert result.stderr == "next: memfit run --budget 60% SCRIPT\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_json_has_numbers(tmp_path, capsys):
    assert main(["doctor", "--json", "--tier", f"disk:{tmp_path}"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    disk = next(finding for finding in report["findings"] if finding["name"] == "disk")
    assert disk["values"]["write_bytes_per_s"] > 0 and disk["values"]["free_bytes"] > 0


def test_plans_kept_for_later_runs_are_counted_and_removed(tmp_path, monkeypatch, capsys):
    for name in ("a.plan.json.gz", "b.plan.json.gz", "notes.txt"):
        (tmp_path / name).write_bytes(bytes(512))
    monkeypatch.setenv("MEMFIT_PLAN_CACHE", str(tmp_path))
    assert _plans().text == f"2 kept, 1.00 KiB, in {tmp_path} (memfit doctor --clear-plans)"
    assert main(["doctor", "--clear-plans"]) == 0
    assert capsys.readouterr().out == f"2 plans removed from {tmp_path}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    monkeypatch.setenv("MEMFIT_PLAN_CACHE", "off")
    assert main(["doctor", "--clear-plans"]) == 0 and "MEMFIT_PLAN_CACHE is off" in _plans().text


@pytest.mark.long
def test_the_ram_tier_needs_no_disk(capsys):
    assert main(["doctor", "--json", "--tier", "ram"]) == 0
    findings = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert "disk" not in findings and findings["link"]["values"]["out_gb_per_s"] > 0


@pytest.mark.long
def test_the_measured_machine_is_kept_and_can_be_planned_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("memfit.running.engine.cache_folder", lambda: tmp_path)
    finding = _link(TierSpec("ram"), None)
    assert finding.ok and str(tmp_path) in finding.text
    machine = find_machine(str(tmp_path / "machine-ram.json"))
    assert machine.out.copy_us(1 << 26) > machine.out.copy_us(1 << 12) > 0 and 0 < machine.both_factor <= 1
    stored = load_machine(str(tmp_path / "machine-ram.json"))
    assert 0 < stored.loaded_factor <= 1 and f"x{stored.loaded_factor:.2f} while ops run" in finding.text


@pytest.mark.long
def test_without_a_compiler_the_remedy_is_named(tmp_path):
    environment = {"CXX": "no-such-compiler", "MEMFIT_CACHE": str(tmp_path / "cache")}
    result = run("-m", "memfit", "doctor", "--tier", "ram", cwd=tmp_path, environment=environment)
    assert result.returncode == 1
    bad = [line for line in result.stdout.splitlines() if line.startswith("BAD")]
    assert [line.split()[1] for line in bad] == ["compiler", "engine"]
    assert "apt-get install g++" in bad[0]


@pytest.mark.parametrize("tier", ["floppy", "disk:/nowhere/at/all"])
def test_a_tier_that_is_none_is_exit_code_1(tier, capsys):
    assert main(["doctor", "--tier", tier]) == 1
    assert capsys.readouterr().err.startswith("memfit: error: ")
