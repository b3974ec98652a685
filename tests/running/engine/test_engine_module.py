"""The engine's module is what Python's side of the seam says it is."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest

import memfit
from memfit.ir import Phase
from memfit.planning.addresses import TakeColumns
from memfit.running import engine
from memfit.running.engine import EngineModule, RemakeTableColumns, SwapTableColumns, loader
from memfit.running.session.stats import Stats
from tracing.recordings import COLUMNS

DECLARED = {name for name in (*vars(EngineModule), *EngineModule.__annotations__) if not name.startswith("_")}
FUNCTIONS = sorted(name for name in DECLARED if inspect.isfunction(getattr(EngineModule, name, None)))


def test_every_name_of_the_engine_is_declared_and_the_other_way_round():
    assert {name for name in dir(engine.load()) if not name.startswith("_")} == DECLARED


def parameters_of(function: object) -> list[str]:
    """The names in the signature that pybind writes into a function's documentation."""
    signature = str(function.__doc__).splitlines()[0]
    inside = re.sub(r"\[[^\[\]]*\]", "", re.sub(r"\[[^\[\]]*\]", "", signature.partition("(")[2].rpartition(") ->")[0]))
    return [part.split(":")[0].strip().lstrip("*") for part in inside.split(",") if part.strip()]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_functions_parameters_are_those_declared(name):
    parameters = inspect.signature(getattr(EngineModule, name)).parameters.values()
    taken = [each for each in parameters if each.name != "self"]
    by_position = inspect.Parameter.POSITIONAL_ONLY  # pybind numbers these
    declared = [f"arg{at}" if each.kind is by_position else each.name for at, each in enumerate(taken)]
    found = parameters_of(getattr(engine.load(), name))
    assert found == ["args" if parameter == "arguments" else parameter for parameter in declared]


def test_what_holds_bytes_takes_a_target_and_whether_to_pin_it():
    assert parameters_of(engine.load().Hold.__init__) == ["self", "target", "pin"]


def test_a_session_has_the_engines_figures_by_the_same_names_in_the_same_order():
    assert list(engine.load().stats()) == [field.name for field in dataclasses.fields(Stats)]


def test_a_recording_names_its_columns_and_its_phases():
    with memfit.session(None, "ram"):
        raw = engine.load().stop_recording()
    assert raw["columns"] == COLUMNS and raw["phases"] == [phase.value for phase in Phase]


@pytest.mark.parametrize(
    ("table", "columns"),
    [("plan_table", TakeColumns), ("swap_table", SwapTableColumns), ("remake_table", RemakeTableColumns)],
)
def test_a_plans_columns_are_those_that_the_engine_reads(table, columns):
    source = (loader._source_folder() / "engine" / "plan_columns.cpp").read_text()
    body = re.split(r"^\w+Tables? (?=\w+_tables?\()", source, flags=re.MULTILINE)
    (reader,) = (part for part in body if part.startswith(f"{table}("))
    (caller,) = (part for part in body if part.startswith("plan_tables("))
    read = set(re.findall(r'column\(columns, "(\w+)"\)', reader))
    read |= set(re.findall(r'column\(swaps, "(\w+)"\)', caller)) if columns is SwapTableColumns else set()
    assert read == set(columns.__annotations__)


def test_there_is_no_phase_of_another_name():
    with pytest.raises(ValueError, match="no phase 'sleep'"):
        engine.load().set_phase("sleep")
