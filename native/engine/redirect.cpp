// A wrapper set as an attribute is not seen by who has taken the function before (`from torch.utils.dlpack import
// to_dlpack`). All references to a C function lead to one PyMethodDef, so that is where a call is caught.
#include "redirect.h"

#include <algorithm>
#include <array>
#include <utility>

namespace memfit {

namespace {

struct Redirect {
  PyMethodDef* method = nullptr;  // torch's or a library's own
  PyMethodDef before{};           // as it was
  bool takes_self = false;        // a method's: the tensor or storage is its first argument
  PyObject* original = nullptr;
  PyObject* to = nullptr;
};

constexpr size_t kMost = 768;
std::array<Redirect, kMost> redirects;  // the interpreter lock guards it; an entry stays, as its trampoline does
size_t used = 0;

PyObject* forward(const Redirect& entry, PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* keywords) {
  PyObject* to = entry.to != nullptr ? entry.to : entry.original;
  Py_ssize_t first = entry.takes_self ? 1 : 0;
  PyObject* all = PyTuple_New(first + count);
  if (all == nullptr) return nullptr;
  if (entry.takes_self) PyTuple_SET_ITEM(all, 0, Py_NewRef(self));
  for (Py_ssize_t i = 0; i < count; ++i) PyTuple_SET_ITEM(all, first + i, Py_NewRef(values[i]));
  Py_INCREF(to);
  PyObject* result = PyObject_Call(to, all, keywords);
  Py_DECREF(to);
  Py_DECREF(all);
  return result;
}

template <size_t kEntry>
PyObject* none_or_one(PyObject* self, PyObject* value) {
  return forward(redirects[kEntry], self, &value, value != nullptr ? 1 : 0, nullptr);
}

template <size_t kEntry>
PyObject* tuple_and_keywords(PyObject* self, PyObject* values, PyObject* keywords) {
  return forward(redirects[kEntry], self, &PyTuple_GET_ITEM(values, 0), PyTuple_GET_SIZE(values), keywords);
}

template <size_t kEntry>
PyObject* tuple(PyObject* self, PyObject* values) {
  return tuple_and_keywords<kEntry>(self, values, nullptr);
}

template <size_t kEntry>
PyObject* fast(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  PyObject* keywords = nullptr;
  if (names != nullptr) {
    keywords = PyDict_New();
    for (Py_ssize_t i = 0; keywords != nullptr && i < PyTuple_GET_SIZE(names); ++i)
      if (PyDict_SetItem(keywords, PyTuple_GET_ITEM(names, i), values[count + i]) != 0) Py_CLEAR(keywords);
    if (keywords == nullptr) return nullptr;
  }
  PyObject* result = forward(redirects[kEntry], self, values, count, keywords);
  Py_XDECREF(keywords);
  return result;
}

template <size_t kEntry>
PyObject* fast_without_keywords(PyObject* self, PyObject* const* values, Py_ssize_t count) {
  return fast<kEntry>(self, values, count, nullptr);
}

using Function = void (*)();
struct Trampolines {
  Function none_or_one, tuple, tuple_and_keywords, fast, fast_without_keywords;
};

template <size_t... kEntries>
constexpr std::array<Trampolines, kMost> make_trampolines(std::index_sequence<kEntries...>) {
  return {{{reinterpret_cast<Function>(&none_or_one<kEntries>), reinterpret_cast<Function>(&tuple<kEntries>),
            reinterpret_cast<Function>(&tuple_and_keywords<kEntries>), reinterpret_cast<Function>(&fast<kEntries>),
            reinterpret_cast<Function>(&fast_without_keywords<kEntries>)}...}};
}

Function trampoline(size_t entry, int flags) {
  static const auto all = make_trampolines(std::make_index_sequence<kMost>());
  switch (flags) {
    case METH_NOARGS:
    case METH_O:
      return all[entry].none_or_one;
    case METH_VARARGS:
      return all[entry].tuple;
    case METH_VARARGS | METH_KEYWORDS:
      return all[entry].tuple_and_keywords;
    case METH_FASTCALL | METH_KEYWORDS:
      return all[entry].fast;
    case METH_FASTCALL:
      return all[entry].fast_without_keywords;
    default:
      return nullptr;
  }
}

bool is_method(PyObject* function) { return Py_IS_TYPE(function, &PyMethodDescr_Type); }

PyMethodDef* method_of(PyObject* function) {
  if (is_method(function)) return reinterpret_cast<PyMethodDescrObject*>(function)->d_method;
  return PyCFunction_Check(function) ? reinterpret_cast<PyCFunctionObject*>(function)->m_ml : nullptr;
}

// A static method, as a function: there is one object. Torch's compiler looks its functions up, and Python tells builtin
// functions apart by the code that their PyMethodDef leads to. So that stays, and the object itself has another way to it
// (of which a function that takes a tuple and keywords has none of its own).
bool is_static(const PyMethodDef& method) { return method.ml_flags == (METH_STATIC | METH_VARARGS | METH_KEYWORDS); }

PyObject* call_static(PyObject* function, PyObject* const* values, size_t flags, PyObject* names) {
  const PyMethodDef* method = method_of(function);
  const auto* entry = std::find_if(redirects.begin(), redirects.begin() + used, [&](const Redirect& each) { return each.method == method; });
  PyObject* to = Py_NewRef(entry->to != nullptr ? entry->to : entry->original);
  PyObject* result = PyObject_Vectorcall(to, values, flags, names);
  Py_DECREF(to);
  return result;
}

PyObject* make_original(PyObject* function, PyMethodDef* method) {
  if (is_method(function)) return PyDescr_NewMethod(PyDescr_TYPE(function), method);
  auto* builtin = reinterpret_cast<PyCFunctionObject*>(function);
  return PyCFunction_NewEx(method, builtin->m_self, builtin->m_module);
}

// The function's entry, made at its first redirection; null with a Python error.
Redirect* entry_of(PyObject* function) {
  PyMethodDef* method = method_of(function);
  for (size_t i = 0; method != nullptr && i < used; ++i)
    if (redirects[i].method == method) return &redirects[i];
  if (method == nullptr || used == kMost || (!is_static(*method) && trampoline(used, method->ml_flags) == nullptr)) {
    PyErr_SetString(PyExc_TypeError, "this function cannot be redirected");
    return nullptr;
  }
  Redirect& entry = redirects[used];
  entry.before = *method;
  entry.takes_self = is_method(function);
  entry.original = make_original(function, &entry.before);
  if (entry.original == nullptr) return nullptr;
  entry.method = method;
  Py_INCREF(function);  // with it the method would go
  ++used;
  return &entry;
}

}  // namespace

PyObject* original_of(PyObject* function) {
  Redirect* entry = entry_of(function);
  return entry != nullptr ? Py_NewRef(entry->original) : nullptr;
}

bool is_original(PyObject* function) {
  const PyMethodDef* method = method_of(function);
  return std::any_of(redirects.begin(), redirects.begin() + used, [&](const Redirect& entry) { return &entry.before == method; });
}

bool redirect(PyObject* function, PyObject* to) {
  Redirect* entry = entry_of(function);
  if (entry == nullptr) return false;
  Py_XINCREF(to);
  PyObject* before = std::exchange(entry->to, to);
  if (is_static(entry->before)) {
    reinterpret_cast<PyCFunctionObject*>(function)->vectorcall = to != nullptr ? &call_static : nullptr;
  } else {
    auto caught = trampoline(static_cast<size_t>(entry - redirects.data()), entry->before.ml_flags);
    entry->method->ml_meth = to != nullptr ? reinterpret_cast<PyCFunction>(caught) : entry->before.ml_meth;
  }
  Py_XDECREF(before);
  return true;
}

}  // namespace memfit
