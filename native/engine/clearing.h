// Clearing: a plan's zone is found, and cleared of everything else.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "compaction.h"
#include "memory.h"
#include "moves.h"
#include "placing.h"
#include "residency.h"
#include "shelf.h"

namespace memfit {

class Clearing {
 public:
  Clearing(Memory& memory, Moves& moves, Residency& residency, Compaction& compaction, Shelf& shelf, Placing& placing)
      : memory_(memory), moves_(moves), residency_(residency), compaction_(compaction), shelf_(shelf), placing_(placing) {}

  // Room for the table's zone, above those that stay, which come in; what the plan swaps leaves. At `wanted`, what cannot
  // move may lie in the zone where no slot does. Returns its offset in the arena, or nothing when it does not fit. No op
  // runs.
  std::optional<size_t> make_zone(const PlanTable& table, std::optional<size_t> wanted, const std::vector<Block*>& staying,
                                  const std::vector<Block*>& swapped);

 private:
  bool pack(const std::vector<Block*>& staying);
  bool clear_away(const std::vector<Block*>& blocks);
  std::optional<size_t> find_zone(size_t bytes) const;
  bool may_be(const PlanTable& table, size_t offset) const;
  bool clear_zone(size_t from, size_t bytes);

  Memory& memory_;
  Moves& moves_;
  Residency& residency_;
  Compaction& compaction_;
  Shelf& shelf_;
  Placing& placing_;
};

}  // namespace memfit
