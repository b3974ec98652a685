// Ways to a storage that are not ops, and a witness of what ops do, for tests.
#include <torch/csrc/jit/api/module.h>

#include "../aliases.h"
#include "../redirect.h"
#include "../witness.h"
#include "bindings.h"

namespace memfit {

namespace {

// Every tensor among the attributes of a TorchScript module and of those in it.
std::vector<at::Tensor> script_tensors(const torch::jit::Module& module) {
  std::vector<at::Tensor> tensors;
  auto keep = [&](const c10::IValue& value) {
    if (value.isTensor() && value.toTensor().defined()) tensors.push_back(value.toTensor());
    return value.isObject();  // an attribute of its own
  };
  for (const c10::IValue& attribute : module.attributes()) attribute.visit(keep);
  return tensors;
}

py::object original(py::object function) {
  PyObject* result = original_of(function.ptr());
  if (result == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

void redirect_to(py::object function, py::object to) {
  if (!redirect(function.ptr(), to.is_none() ? nullptr : to.ptr())) throw py::error_already_set();
}

void watch(py::object capsule, bool on) {
  if (!watch_exchange(capsule.ptr(), on)) throw py::error_already_set();
}

py::dict testimonies_by_name() {
  py::dict found;
  for (const auto& [name, testimony] : testimonies())
    found[py::str(name)] = py::make_tuple(testimony.calls, testimony.changed, py::cast(testimony.written));
  return found;
}

// By name, of composites: calls, and those in which bytes were written by none of what they called.
py::dict composites() {
  py::dict found;
  for (const auto& [name, testimony] : testimonies())
    if (testimony.composed != 0) found[py::str(name)] = py::make_tuple(testimony.composed, testimony.opaque);
  return found;
}

}  // namespace

void bind_doors(py::module_& m) {
  m.def("original_of", &original, py::arg("function"));
  m.def("redirect", &redirect_to, py::arg("function"), py::arg("to"));
  m.def("watch_exchange", &watch, py::arg("capsule"), py::arg("on"));
  m.def("answer_for_aliases", &answer_for_aliases);
  m.def("script_tensors", &script_tensors, py::arg("module"));
  m.def("set_witness", &set_witness, py::arg("on"));
  m.def("testimonies", &testimonies_by_name);
  m.def("composites", &composites);
}

}  // namespace memfit
