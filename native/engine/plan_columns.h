// Plans as Python hands them over: columns by name.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

#include "plan.h"
#include "remakings.h"
#include "swaps.h"

namespace memfit {

using Column = std::vector<size_t>;
using Columns = std::unordered_map<std::string, Column>;

// Raises std::invalid_argument if there is none of that name.
const Column& column(const Columns& columns, const char* name);
// They raise std::invalid_argument for columns that contradict each other: the engine reads the tables without looking
// back. `swaps`: how many there are; `takes`: how many an iteration has.
PlanTable plan_table(const Columns& columns, size_t zone_bytes, size_t iterations, size_t swaps, size_t alignment);
SwapTable swap_table(const Columns& columns, size_t takes);
RemakeTable remake_table(const Columns& columns, size_t ops, size_t storages, size_t takes);

}  // namespace memfit
