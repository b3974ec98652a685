// Compiled functions of other libraries, called as ops.
#include <link.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_set>
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
void gather_operands(PyObject* value, Operands& operands, int depth = 0) {
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
  Operands operands;
  gather_operands(arguments.ptr(), operands);
  gather_operands(keywords.ptr(), operands);
  if (operands.empty() || !Engine::get().active()) return call(function.ptr(), arguments, keywords);
  const OpInfo& op = extension_op(name);
  const int64_t source = this_thread().depth == 0 && Engine::get().recording() ? current_source() : -1;
  Ending ending;
  {
    py::gil_scoped_release no_gil;
    ending.call = std::make_unique<ExtensionCall>(op, c10::ArrayRef<const c10::IValue>(operands.data(), operands.size()), source);
  }
  py::object result = call(function.ptr(), arguments, keywords);
  Operands outputs;
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
  // (The engine's own may have been loaded from a path at which it no longer is: that of its build.)
  const auto own = reinterpret_cast<uintptr_t>(&note_library);
  for (const auto& [begin, end] : library.code) found = found && (own < begin || own >= end);
  if (found) static_cast<std::vector<Library>*>(to)->push_back(std::move(library));
  return 0;
}

// The libraries that are loaded and need torch's, but for the engine.
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

// The functions and modules of libraries, as they are found among objects: each once.
class Parts {
 public:
  explicit Parts(const std::vector<std::string>& paths) : paths_(paths) {
    for (const Library& library : libraries())
      if (is_wanted(library.path)) code_.insert(code_.end(), library.code.begin(), library.code.end());
  }

  void look_at(PyObject* object) {
    const uintptr_t at = code_of(object);
    const bool inside = std::any_of(code_.begin(), code_.end(), [&](auto& part) { return part.first <= at && at < part.second; });
    if (inside && !is_original(object)) add(functions, object);
    if (!PyModule_Check(object)) return;
    PyObject* file = PyDict_GetItemString(PyModule_GetDict(object), "__file__");
    const bool is_part = file != nullptr && PyUnicode_Check(file) && is_wanted(py::cast<std::string>(file));
    if (is_part && add(modules, object)) look_into(object);
  }

  void look_into(PyObject* module) {
    PyObject *name = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(PyModule_GetDict(module), &at, &name, &value);) look_at(value);
  }

  py::list functions, modules;

 private:
  bool is_wanted(const std::string& path) const { return std::find(paths_.begin(), paths_.end(), path) != paths_.end(); }
  bool add(py::list& to, PyObject* object) {
    if (!seen_.insert(object).second) return false;
    to.append(py::handle(object));
    return true;
  }

  const std::vector<std::string>& paths_;
  std::vector<std::pair<uintptr_t, uintptr_t>> code_;
  std::unordered_set<PyObject*> seen_;
};

// A module that was loaded by hand is in no list of modules, and its functions may outlive it; at what was frozen
// (`gc.freeze`) the collector does not look. In C++: a profiler notes every call of Python's, and there are many objects.
std::pair<py::list, py::list> parts_of(const std::vector<std::string>& paths) {
  const py::list tracked = py::module_::import("gc").attr("get_objects")();
  Parts parts(paths);
  PyObject *name = nullptr, *module = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(PyImport_GetModuleDict(), &at, &name, &module);) {
    parts.look_at(module);
    if (PyModule_Check(module)) parts.look_into(module);
  }
  for (const py::handle object : tracked) parts.look_at(object.ptr());
  return {parts.functions, parts.modules};
}

}  // namespace

void bind_extensions(py::module_& m) {
  m.def("call_as_op", &call_as_op);  // its own have no names, so that the function may have keywords of any
  m.def("libraries_with_torch", &libraries_with_torch);
  m.def("parts_of", &parts_of, py::arg("paths"));
}

}  // namespace memfit
