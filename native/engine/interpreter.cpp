#include "interpreter.h"

#include <Python.h>

namespace memfit {

WithInterpreter::WithInterpreter() : has_(Py_IsInitialized() != 0) {
  if (has_) state_ = PyGILState_Ensure();
}

WithInterpreter::~WithInterpreter() {
  if (has_) PyGILState_Release(static_cast<PyGILState_STATE>(state_));
}

WithoutInterpreter::WithoutInterpreter() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}

void WithoutInterpreter::take_back() {
  if (state_ != nullptr) PyEval_RestoreThread(state_);
}

}  // namespace memfit
