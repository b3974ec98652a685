// Written by tests/running/stress/verified.py: do not edit.
#pragma once

#include <string_view>

namespace memfit {

constexpr std::string_view kVerifiedOps[] = {
    "",
};

}  // namespace memfit
