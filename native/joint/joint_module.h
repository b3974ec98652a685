#pragma once

#include <nanobind/nanobind.h>

namespace memfit::joint {

void register_joint(nanobind::module_& m);

}  // namespace memfit::joint
