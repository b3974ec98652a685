// C functions of torch and of libraries, answered by Python ones wherever a reference to them was taken.
#pragma once

#include <Python.h>

namespace memfit {

// A function that does what `function` (a method descriptor or a builtin function) does by itself, redirected or not.
// Null, with a Python error, for what cannot be redirected.
PyObject* original_of(PyObject* function);
// Let calls of `function` go to `to`; null lets it do again what it does by itself.
bool redirect(PyObject* function, PyObject* to);
// Whether it is one that `original_of` has made.
bool is_original(PyObject* function);

// Pin what leaves through DLPack's C functions, which Python never sees called. The capsule is torch's own.
bool watch_exchange(PyObject* capsule, bool on);

}  // namespace memfit
