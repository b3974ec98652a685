// Registers the packing half of memfit._native.
#pragma once

#include <nanobind/nanobind.h>

namespace memfit::packing {

void register_packing(nanobind::module_& m);

}  // namespace memfit::packing
