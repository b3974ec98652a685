// DLPack's exchange of tensors between C libraries: torch publishes a table of functions, and who has read it calls
// them without Python.
#include <ATen/dlpack.h>
#include <torch/csrc/autograd/python_variable.h>

#include "engine.h"
#include "observer.h"
#include "redirect.h"

namespace memfit {

#if DLPACK_MAJOR_VERSION > 1 || DLPACK_MINOR_VERSION >= 3

namespace {

DLPackManagedTensorFromPyObjectNoSync give_managed = nullptr;
DLPackDLTensorFromPyObjectNoSync give_plain = nullptr;

// Bring the tensor's bytes in to stay. False, with a Python error, when they cannot come. Its caller has the lock.
bool pin_tensor(void* object) {
  if (!THPVariable_Check(static_cast<PyObject*>(object))) return true;  // torch says what is wrong
  at::Tensor tensor = THPVariable_Unpack(static_cast<PyObject*>(object));
  if (!tensor.has_storage()) return true;
  const int64_t source = current_source();
  try {
    pybind11::gil_scoped_release no_gil;
    Engine& engine = Engine::get();
    engine.adopt(tensor.storage());
    if (Block* block = engine.hold(tensor.storage(), /*stays=*/true)) {
      engine.pin(block, source);
      engine.unhold(block);
    }
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_BufferError, error.what());
    return false;
  }
  return true;
}

int managed_from(void* object, DLManagedTensorVersioned** out) {
  return pin_tensor(object) ? give_managed(object, out) : -1;
}

int plain_from(void* object, DLTensor* out) { return pin_tensor(object) ? give_plain(object, out) : -1; }

}  // namespace

bool watch_exchange(PyObject* capsule, bool on) {
  auto* table = static_cast<DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  if (table == nullptr) return false;
  if (give_managed == nullptr) {
    give_managed = table->managed_tensor_from_py_object_no_sync;
    give_plain = table->dltensor_from_py_object_no_sync;
  }
  table->managed_tensor_from_py_object_no_sync = on ? &managed_from : give_managed;
  if (give_plain != nullptr) table->dltensor_from_py_object_no_sync = on ? &plain_from : give_plain;
  return true;
}

#else

bool watch_exchange(PyObject*, bool) { return true; }  // this torch publishes none

#endif

}  // namespace memfit
