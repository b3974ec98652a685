// Plans as Python hands them over: columns by name.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

#include "planned.h"

namespace memfit {

using Column = std::vector<size_t>;
using Columns = std::unordered_map<std::string, Column>;

// Raises std::invalid_argument if there is none of that name.
const Column& column(const Columns& columns, const char* name);
// Raises std::invalid_argument for columns that contradict each other: the engine reads the tables without looking back.
PlanTables plan_tables(const Columns& takes, size_t zone_bytes, size_t iterations, const Columns& swaps, const Columns& remakes,
                       size_t alignment);

}  // namespace memfit
