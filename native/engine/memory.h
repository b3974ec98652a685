// Memory: the two places between which a session moves storages, the device's arena and a tier.
#pragma once

#include <memory>

#include "arena.h"
#include "device.h"
#include "lifelines.h"
#include "tier.h"

namespace memfit {

struct Memory {
  Device* device;
  std::shared_ptr<Arena> arena;
  std::shared_ptr<Tier> tier;
  std::unique_ptr<Lifelines> lifelines;  // of the children that may read the tier; in a child, its own
  // The session is over, or a forked child has inherited it: nothing comes in any more, and nobody waits.
  bool is_closed = false;

  // The block's bytes lie in the session's arena.
  bool holds(const Block& block) const { return block.resident() && block.arena == arena; }
  // The tier's extents may be used again as soon as no child can read them.
  void thaw_if_alone() {
    if (!lifelines->any_child()) tier->thaw();
  }
};

}  // namespace memfit
