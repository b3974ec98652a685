#include "plan_columns.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace memfit {

namespace {

void check(bool ok) {
  if (!ok) throw std::invalid_argument("the columns do not describe a plan");
}

}  // namespace

const Column& column(const Columns& columns, const char* name) {
  auto found = columns.find(name);
  if (found == columns.end()) throw std::invalid_argument(std::string("a plan needs the column ") + name);
  return found->second;
}

namespace {

// Which it is of the iteration's own allocations, or of those of the op that runs again.
void number_allocations(PlanTable& table) {
  const size_t count = table.takes.size() / table.iterations;
  uint32_t own = 0, again = 0, op = 0;
  for (size_t i = 0; i < table.takes.size(); ++i) {
    PlanTable::Take& take = table.takes[i];
    if (i % count == 0) own = 0;
    if (take.swap != PlanTable::kAllocation || take.again == PlanTable::kFrames) continue;
    if (std::exchange(op, take.again) != take.again || i % count == 0) again = 0;
    take.number = take.again == 0 ? own++ : again++;
  }
}

PlanTable plan_table(const Columns& columns, size_t zone_bytes, size_t iterations, size_t swaps, size_t alignment) {
  const Column &bytes = column(columns, "size"), &slots = column(columns, "slots"), &swap = column(columns, "swap");
  const Column &due_begin = column(columns, "due_begin"), &due_take = column(columns, "due_take");
  const Column &ago = column(columns, "due_periods_ago"), &slot_offset = column(columns, "slot_offset"), &again = column(columns, "again");
  const Column &mapped = column(columns, "mapped"), &temporary = column(columns, "temporary");
  check(mapped.size() == bytes.size() && temporary.size() == bytes.size());
  check(iterations > 0 && bytes.size() % iterations == 0 && slots.size() == bytes.size() && swap.size() == bytes.size() && again.size() == bytes.size());
  check(due_begin.size() == bytes.size() + 2 && due_begin[0] == 0 && due_begin.back() == due_take.size());
  check(ago.size() == due_take.size() && std::is_sorted(due_begin.begin(), due_begin.end()));
  PlanTable table;
  table.takes.reserve(bytes.size());
  table.due.reserve(due_take.size());
  uint32_t slot = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    check(swap[i] <= swaps);  // counted from 1; 0: an allocation
    check(mapped[i] == 0 || (slots[i] == 0 && swap[i] == 0));
    table.takes.push_back({bytes[i], slot, static_cast<uint32_t>(slots[i]), static_cast<int64_t>(swap[i]) - 1, static_cast<uint32_t>(again[i]), mapped[i] != 0,
                           temporary[i] != 0});
    for (size_t s = 0; s < slots[i]; ++s, ++slot)
      check(slot < slot_offset.size() && slot_offset[slot] + bytes[i] <= zone_bytes && slot_offset[slot] % alignment == 0);
  }
  check(slot == slot_offset.size());
  for (size_t i = 0; i < due_take.size(); ++i) {
    check(due_take[i] < bytes.size() && slots[due_take[i]] > 0 && ago[i] <= Plan::kFirstPeriod);
    table.due.push_back({static_cast<uint32_t>(due_take[i]), static_cast<uint32_t>(ago[i])});
  }
  const Column& op_begin = column(columns, "op_begin");
  check(!op_begin.empty() && op_begin.back() == bytes.size() / iterations && std::is_sorted(op_begin.begin(), op_begin.end()));
  table.op_begin.assign(op_begin.begin(), op_begin.end());
  table.due_begin.assign(due_begin.begin(), due_begin.end());
  table.slot_offset = slot_offset;
  table.bytes = zone_bytes;
  table.iterations = iterations;
  number_allocations(table);
  return table;
}

SwapTable swap_table(const Columns& columns, size_t ops, size_t takes) {
  const Column &block = column(columns, "block"), &ordinal = column(columns, "ordinal"), &bytes = column(columns, "bytes");
  const Column &storage = column(columns, "storage"), &out_after = column(columns, "out_after");
  const Column &free_by = column(columns, "free_by"), &in_start = column(columns, "in_start"), &take = column(columns, "take");
  const Column& again = column(columns, "again");
  check(ordinal.size() == block.size() && bytes.size() == block.size() && again.size() == block.size());
  for (const Column* other : {&out_after, &free_by, &in_start, &take}) check(other->size() == storage.size());
  const Column &map_op = column(columns, "map_op"), &map_storage = column(columns, "map_storage");
  check(map_op.size() == map_storage.size());
  SwapTable table;
  for (size_t i = 0; i < map_op.size(); ++i) {
    check(map_op[i] < ops && map_storage[i] < block.size());
    table.maps.emplace(static_cast<uint32_t>(map_op[i]), static_cast<uint32_t>(map_storage[i]));
  }
  for (size_t i = 0; i < block.size(); ++i)
    table.storages.push_back({block[i], static_cast<uint32_t>(ordinal[i]), bytes[i], static_cast<uint32_t>(again[i])});
  for (size_t i = 0; i < storage.size(); ++i) {
    check(storage[i] < block.size() && out_after[i] < ops && free_by[i] < ops && in_start[i] < ops && take[i] <= takes);
    table.swaps.push_back({static_cast<uint32_t>(storage[i]), static_cast<uint32_t>(out_after[i]), static_cast<uint32_t>(free_by[i]),
                           static_cast<uint32_t>(in_start[i]), take[i] == 0 ? SwapTable::kNone : static_cast<uint32_t>(take[i] - 1)});
  }
  return table;
}

// Ops and drops count from 0; an op that repeats none has 0, otherwise it has one more than the op that it repeats. So it
// is with the takes of drops: one for good has 0.
RemakeTable remake_table(const Columns& columns, size_t ops, size_t storages, size_t takes) {
  const Column &repeats = column(columns, "repeats"), &storage = column(columns, "storage");
  const Column &after = column(columns, "after"), &before = column(columns, "before"), &take = column(columns, "take");
  const Column &carried = column(columns, "carried"), &last_take = column(columns, "last_take"), &kept = column(columns, "kept");
  check(repeats.empty() || repeats.size() == ops);
  for (const Column* other : {&after, &before, &take}) check(other->size() == storage.size());
  check(carried.size() == last_take.size());
  RemakeTable table;
  for (size_t i = 0; i < repeats.size(); ++i) {
    check(repeats[i] <= i);
    table.repeats.push_back(repeats[i] == 0 ? RemakeTable::kFirstTime : static_cast<uint32_t>(repeats[i] - 1));
  }
  for (size_t i = 0; i < storage.size(); ++i) {
    check(storage[i] < storages && after[i] < before[i] && before[i] < ops && take[i] <= takes);
    table.drops.push_back({static_cast<uint32_t>(storage[i]), static_cast<uint32_t>(after[i]), static_cast<uint32_t>(before[i]),
                           take[i] == 0 ? RemakeTable::kForGood : static_cast<uint32_t>(take[i] - 1)});
  }
  for (size_t op : kept) {
    check(op < ops);
    table.kept.push_back(static_cast<uint32_t>(op));
  }
  for (size_t i = 0; i < carried.size(); ++i) {
    check(last_take[i] < takes);
    table.carried[static_cast<uint32_t>(carried[i])] = static_cast<uint32_t>(last_take[i]);
  }
  return table;
}

}  // namespace

PlanTables plan_tables(const Columns& takes, size_t zone_bytes, size_t iterations, const Columns& swaps, const Columns& remakes,
                       size_t alignment) {
  PlanTables plan;
  plan.takes = plan_table(takes, zone_bytes, iterations, column(swaps, "storage").size(), alignment);
  const Column& identities = column(swaps, "op_hashes");
  const size_t ops = identities.size(), count = plan.takes.takes.size() / iterations;
  check(plan.takes.op_begin.size() == ops + 1);
  plan.identities.assign(identities.begin(), identities.end());
  plan.swaps = swap_table(swaps, ops, count);
  plan.remakes = remake_table(remakes, ops, plan.swaps.storages.size(), count);
  return plan;
}

}  // namespace memfit
