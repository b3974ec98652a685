// Operators whose result is still to be filled by their caller, perhaps in C++: it stays put until an op uses it.
#pragma once

#include <string_view>

namespace memfit {

inline constexpr std::string_view kUninitialisedFactories[] = {
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::empty_permuted", "aten::new_empty",
    "aten::new_empty_strided", "aten::resize_",
};

}  // namespace memfit
