// Calls that no signal handler written in Python interrupts.
#pragma once

#include <pybind11/pybind11.h>

namespace memfit {

// Returns what `action` returns. A signal that comes meanwhile is noted, and its handler called afterwards. If anything
// raises, a handler included, `undo` (unless it is None) is called in the same way before that is raised.
//
// The interpreter looks for signals between its own instructions: called as `__enter__` or `__exit__` of a `with`
// block, this leaves no moment between the block and the call.
pybind11::object undisturbed(const pybind11::object& action, const pybind11::object& undo, const pybind11::args& arguments);

}  // namespace memfit
