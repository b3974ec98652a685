// The engine as a Python module: what its parts share.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../engine.h"

namespace memfit {

namespace py = pybind11;

// Each defines a part of the module's functions.
void bind_errors(py::module_& m);
void bind_session(py::module_& m);
void bind_storages(py::module_& m);
void bind_recordings(py::module_& m);
void bind_plans(py::module_& m);
void bind_callbacks(py::module_& m);
void bind_doors(py::module_& m);
void bind_extensions(py::module_& m);
void bind_kernels(py::module_& m);

// For such a function as touches nothing of Python's.
using NoGil = py::call_guard<py::gil_scoped_release>;

[[noreturn]] void raise_tier_error(const TierFailure& error);

// Runs `action`; a TierFailure becomes Python's TierError.
template <typename Action>
auto telling_of_tiers(Action&& action) {
  try {
    return action();
  } catch (const TierFailure& error) {
    raise_tier_error(error);
  }
}

// Bytes to which the session's arena aligns storages; 1 without a session.
size_t alignment();

// Of a tensor or a storage; none for a sparse tensor.
c10::Storage storage_of(py::handle object);

// Calls `use` with everything that the garbage collector knows of. Some of it may be in the making by other threads,
// which rely on nobody else's having a reference to it: none is left by the time that they go on, since neither this
// nor `use` lets go of the interpreter.
template <typename Use>
void each_visible(const Use& use) {
  py::object get_objects = py::module_::import("gc").attr("get_objects");
  py::list objects = get_objects();
  for (py::handle object : objects) use(object);
}

inline py::bytes as_bytes(const std::vector<int64_t>& values) {
  return py::bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t));
}

// The names of a table's columns.
template <size_t Count>
py::tuple names_of(const char* const (&columns)[Count]) {
  py::tuple names(Count);
  for (size_t i = 0; i < Count; ++i) names[i] = columns[i];
  return names;
}

}  // namespace memfit
