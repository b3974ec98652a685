// Registers the simulators and the search of memfit._native.
#pragma once

#include <nanobind/nanobind.h>

namespace memfit::swapping {

void register_swapping(nanobind::module_& m);
void register_faults(nanobind::module_& m);

}  // namespace memfit::swapping
