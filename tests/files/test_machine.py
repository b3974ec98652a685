import json
from dataclasses import replace

import pytest

from memfit.errors import InputError, UsageError
from memfit.files import find_machine, load_machine, save_machine
from memfit.machine import WINDOW, Link, Machine, profile, profile_names

MEASURED = Machine(
    "here", Link((1, 10, 100), (1.0, 2.5, 9.0)), Link.of_bandwidth(5), 0.7, 1 << 34, 256, 0.9, 4e12, WINDOW
)


@pytest.mark.parametrize("machine", [MEASURED, *map(profile, profile_names())], ids=lambda machine: machine.name)
def test_a_machine_comes_back_as_it_was(tmp_path, machine):
    save_machine(machine, tmp_path / "m.json")
    assert load_machine(tmp_path / "m.json") == machine
    assert find_machine(str(tmp_path / "m.json")) == machine.under_load()


def test_a_file_from_before_a_field_was_there_is_read(tmp_path):
    save_machine(MEASURED, tmp_path / "m.json")
    document = json.loads((tmp_path / "m.json").read_text())
    del document["loaded_factor"], document["memory_bytes_per_s"], document["faults"]
    (tmp_path / "m.json").write_text(json.dumps(document))
    assert load_machine(tmp_path / "m.json") == replace(
        MEASURED, loaded_factor=1.0, memory_bytes_per_s=0.0, faults=None
    )


def test_a_name_is_a_profile_and_neither_is_a_usage_error():
    assert find_machine("pcie4") is profile("pcie4")
    with pytest.raises(UsageError, match="there is no machine 'nothing'"):
        find_machine("nothing")


@pytest.mark.parametrize(
    ("section", "changes", "says"),
    [
        ("out", {"time_us": [3, 2, 1]}, "times may not fall"),
        ("out", {"time_us": [3]}, "out.time_us has 1 entries"),
        ("both_factor", 2, "outside (0, 1]"),
        ("faults", {"keeps_copies": 2}, "faults.keeps_copies"),
        ("faults", {"block_bytes": 3}, "a block is made of one or more chunks"),
    ],
)
def test_a_damaged_machine_names_the_file(tmp_path, section, changes, says):
    save_machine(MEASURED, tmp_path / "m.json")
    document = json.loads((tmp_path / "m.json").read_text())
    document[section] = document[section] | changes if isinstance(changes, dict) else changes
    (tmp_path / "m.json").write_text(json.dumps(document))
    with pytest.raises(InputError) as error:
        load_machine(tmp_path / "m.json")
    assert says in str(error.value) and "m.json" in str(error.value)
