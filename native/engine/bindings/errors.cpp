// The engine's errors, as Python's exceptions.
#include <torch/csrc/Exceptions.h>

#include "../observer.h"
#include "../pointers.h"
#include "bindings.h"

namespace memfit {

namespace {

PyObject* budget_error_type = nullptr;
PyObject* tier_error_type = nullptr;

struct PythonError final : torch::PyTorchError {
  PythonError(std::string message, PyObject* type) : torch::PyTorchError(std::move(message)), type(type) {}
  PyObject* python_type() override { return type; }
  PyObject* type;
};

py::dict last_failure() {
  Failure failure = Engine::get().last_failure();
  const char* kinds[] = {"", "budget", "tier"};
  py::dict d;
  d["kind"] = kinds[static_cast<int>(failure.kind)];
  d["message"] = in_words(failure);
  d["op"] = failure.op;
  d["tensors"] = failure.tensors;
  d["source"] = failure.source;
  d["required_bytes"] = failure.required_bytes;
  return d;
}

// The kind of memfit's text in torch's own error: torch hands on no more than the text behind the storage.
const char* met_in(const std::string& message) {
  auto has = [&](const char* text) { return message.find(text) != std::string::npos; };
  return has(kAbsent) ? "absent" : has(kLost) ? "lost" : has(kMark) ? "refused" : "";
}

// The next allocation raises this: for errors found where nothing may be raised.
void fail_next(const std::string& message, size_t required_bytes) {
  Engine::get().in_session([&](Session& session) { session.refusals.refuse_next(message, required_bytes); });
}

void set_error_types(py::object budget, py::object tier) {
  budget_error_type = budget.release().ptr();
  tier_error_type = tier.release().ptr();
}

void translate(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (PythonError& e) {
    PyErr_SetString(e.python_type(), e.what());
  }
}

}  // namespace

void raise(const Failure& failure) {
  Failure told = failure;
  told.source = source_text(current_source());
  Engine::get().note_failure_source(told.source);
  throw PythonError(in_words(told), failure.kind == Failure::Kind::kTier ? tier_error_type : budget_error_type);
}

void raise_tier_error(const TierFailure& error) { throw PythonError(std::string(kMark) + error.what(), tier_error_type); }

void bind_errors(py::module_& m) {
  py::register_exception_translator(&translate);
  m.def("set_error_types", &set_error_types, py::arg("budget_error"), py::arg("tier_error"));
  m.def("set_library_folders", &set_library_folders, py::arg("folders"));
  m.def("last_failure", &last_failure);
  m.def("met_in", &met_in, py::arg("message"));
  m.def("fail_next", &fail_next, py::arg("message"), py::arg("required_bytes"));
}

}  // namespace memfit
