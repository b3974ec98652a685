// Registers the swapping half of memfit._native.
#pragma once

#include <nanobind/nanobind.h>

namespace memfit::swapping {

void register_swapping(nanobind::module_& m);

}  // namespace memfit::swapping
