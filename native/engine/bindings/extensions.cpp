// Compiled functions of other libraries, called as ops.
#include <link.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../extension.h"
#include "../observer.h"
#include "../redirect.h"
#include "../thread_state.h"
#include "bindings.h"

namespace memfit {

namespace {

constexpr int kDeepest = 16;  // containers in containers that are looked into: a list may hold itself

// Every tensor and storage in `value`, a tuple, list or dict of such and of others.
void gather_operands(PyObject* value, std::vector<c10::IValue>& operands, int depth = 0) {
  if (THPVariable_Check(value)) {
    const at::Tensor& tensor = THPVariable_Unpack(value);
    if (tensor.defined()) operands.emplace_back(tensor);
  } else if (THPStorage_Check(value)) {
    operands.emplace_back(THPStorage_Unpack(value));
  } else if (depth < kDeepest && (PyTuple_Check(value) || PyList_Check(value))) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
      gather_operands(PySequence_Fast_GET_ITEM(value, i), operands, depth + 1);
  } else if (depth < kDeepest && PyDict_Check(value)) {
    PyObject *key = nullptr, *item = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(value, &at, &key, &item);) gather_operands(item, operands, depth + 1);
  }
}

std::vector<c10::IValue> operands_of(PyObject* arguments, PyObject* keywords) {
  std::vector<c10::IValue> operands;
  gather_operands(arguments, operands);
  if (keywords != nullptr) gather_operands(keywords, operands);
  return operands;
}

py::object call(PyObject* function, const py::args& arguments, const py::kwargs& keywords) {
  PyObject* result = PyObject_Call(function, arguments.ptr(), keywords.ptr());
  if (result == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

// Ends with the block, without the interpreter lock.
struct Ending {
  ~Ending() {
    py::gil_scoped_release no_gil;
    call.reset();
  }
  std::unique_ptr<ExtensionCall> call;
};

py::object call_as_op(const py::object& function, const std::string& name, const py::args& arguments, const py::kwargs& keywords) {
  std::vector<c10::IValue> operands = operands_of(arguments.ptr(), keywords.ptr());
  if (operands.empty() || !Engine::get().active()) return call(function.ptr(), arguments, keywords);
  const OpInfo& op = extension_op(name);
  const int64_t source = this_thread().depth == 0 && Engine::get().recording() ? current_source() : -1;
  Ending ending;
  {
    py::gil_scoped_release no_gil;
    ending.call = std::make_unique<ExtensionCall>(op, operands, source);
  }
  py::object result = call(function.ptr(), arguments, keywords);
  std::vector<c10::IValue> outputs;
  gather_operands(result.ptr(), outputs);
  ending.call->returned(std::move(outputs));
  return result;
}

struct Library {
  std::string path;
  std::vector<std::pair<uintptr_t, uintptr_t>> code;
};

// Whether a library names one of torch's among those it needs.
bool needs_torch(const dl_phdr_info& info, const ElfW(Dyn)* rows) {
  uintptr_t names = 0;
  for (const ElfW(Dyn)* row = rows; row->d_tag != DT_NULL; ++row)
    if (row->d_tag == DT_STRTAB) names = row->d_un.d_ptr;
  if (names < info.dlpi_addr) names += info.dlpi_addr;  // where the loader leaves it as it was
  for (const ElfW(Dyn)* row = rows; row->d_tag != DT_NULL; ++row) {
    if (row->d_tag != DT_NEEDED) continue;
    const auto* needed = reinterpret_cast<const char*>(names + row->d_un.d_val);
    if (std::strncmp(needed, "libtorch", 8) == 0 || std::strncmp(needed, "libc10", 6) == 0) return true;
  }
  return false;
}

int note_library(dl_phdr_info* info, size_t, void* to) {
  Library library{info->dlpi_name, {}};
  bool found = false;
  for (size_t i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_DYNAMIC) found = needs_torch(*info, reinterpret_cast<const ElfW(Dyn)*>(begin));
    if (part.p_type == PT_LOAD && (part.p_flags & PF_X) != 0) library.code.emplace_back(begin, begin + part.p_memsz);
  }
  if (found) static_cast<std::vector<Library>*>(to)->push_back(std::move(library));
  return 0;
}

// The libraries that are loaded and need torch's.
std::vector<Library> libraries() {
  std::vector<Library> found;
  dl_iterate_phdr(&note_library, &found);
  return found;
}

std::vector<std::string> libraries_with_torch() {
  std::vector<std::string> paths;
  for (Library& library : libraries()) paths.push_back(std::move(library.path));
  return paths;
}

// Zero: it is no C function.
uintptr_t code_of(PyObject* object) {
  const PyMethodDef* method = nullptr;
  if (PyCFunction_Check(object)) method = reinterpret_cast<PyCFunctionObject*>(object)->m_ml;
  if (Py_IS_TYPE(object, &PyMethodDescr_Type)) method = reinterpret_cast<PyMethodDescrObject*>(object)->d_method;
  return method != nullptr ? reinterpret_cast<uintptr_t>(method->ml_meth) : 0;
}

py::list functions_in(const std::vector<std::string>& paths, const py::list& objects) {
  std::vector<std::pair<uintptr_t, uintptr_t>> code;
  for (const Library& library : libraries())
    if (std::find(paths.begin(), paths.end(), library.path) != paths.end())
      code.insert(code.end(), library.code.begin(), library.code.end());
  py::list found;
  for (const py::handle object : objects) {
    const uintptr_t at = code_of(object.ptr());
    const bool inside = std::any_of(code.begin(), code.end(), [&](auto& part) { return part.first <= at && at < part.second; });
    if (inside && !is_original(object.ptr())) found.append(object);
  }
  return found;
}

}  // namespace

void bind_extensions(py::module_& m) {
  m.def("call_as_op", &call_as_op);
  m.def("libraries_with_torch", &libraries_with_torch);
  m.def("functions_in", &functions_in, py::arg("paths"), py::arg("objects"));
}

}  // namespace memfit
