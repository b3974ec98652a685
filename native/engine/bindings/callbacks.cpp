// The engine's calls into Python.
#include "../observer.h"
#include "bindings.h"

namespace memfit {

namespace {

// A reference that may go where the interpreter is not held, or no more.
using SharedObject = std::shared_ptr<PyObject>;
SharedObject shared(py::object object) {
  return SharedObject(object.release().ptr(), [](PyObject* owned) {
    if (!Py_IsInitialized()) return;
    py::gil_scoped_acquire gil;
    Py_DECREF(owned);
  });
}

// Raises what Py_AddPendingCall was given, in the main thread.
int raise_pending(void* error) {
  auto* value = static_cast<PyObject*>(error);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value)), value);
  Py_DECREF(value);
  return -1;
}

// The callback's error may be an interrupt, or come from a signal's handler. It cannot be raised into the op that
// happens to run: the main thread raises it as soon as it is back in Python. Another thread's is printed.
void raise_later(py::error_already_set& error) {
  bool main = PyThread_get_thread_ident() == py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
  py::object value = error.value();
  if (main && Py_AddPendingCall(&raise_pending, value.ptr()) == 0)
    value.release();  // the pending call's
  else
    error.discard_as_unraisable("memfit");
}

// Python's answer to a repeating op stream, until the session ends.
void set_on_period(py::object action) {
  Engine::get().on_period([callable = shared(std::move(action))] {
    if (!Py_IsInitialized()) return;
    py::gil_scoped_acquire gil;
    try {
      py::reinterpret_borrow<py::object>(callable.get())();
    } catch (py::error_already_set& error) {
      raise_later(error);
    }
  });
}

// Python's way to tell the user a line, said once for the process. It must not raise into the op that happens to run.
void set_on_notice(py::object action) {
  Engine::get().on_notice([callable = shared(std::move(action))](const std::string& line) {
    py::gil_scoped_acquire gil;
    try {
      py::reinterpret_borrow<py::object>(callable.get())(line);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("memfit");
    }
  });
}

}  // namespace

void bind_callbacks(py::module_& m) {
  m.def("on_period", &set_on_period, py::arg("action"));
  m.def("on_notice", &set_on_notice, py::arg("action"));
  m.def("watch_nodes", &watch_nodes, py::arg("on"));
  m.def("forget_operators", &forget_operators);
  m.def("trust_registered_kernels", &trust_registered_kernels, py::arg("on"));
  m.def("observe_idly", &observe_idly, py::arg("on"));
}

}  // namespace memfit
