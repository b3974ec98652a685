#include "recomputing.h"

#include <stdexcept>
#include <utility>

#include "engine.h"
#include "making.h"
#include "observer.h"
#include "stopwatch.h"
#include "values.h"

namespace memfit {

void Recomputing::make(const std::vector<Block*>& held) {
  for (Block* block : held)
    if (!make(*block)) engine_.unhold(block);
}

void Recomputing::make_those(const std::function<std::vector<Block*>(Session&)>& select) {
  make(engine_.governing([&](Session& session) {
    std::vector<Block*> wanted = select(session);
    Books::hold(wanted);
    return wanted;
  }));
}

void Recomputing::make_all() {
  make_those([](Session& session) {
    std::vector<Block*> wanted;
    for (Block* block : session.lasting.books.all())
      if (block->discarded) wanted.push_back(block);
    return wanted;
  });
}

// Whether it is there again, and let go of.
bool Recomputing::make(Block& block) {
  Aside aside;
  std::shared_ptr<Value> value;
  engine_.governing([&](Session&) {
    if (!block.dead && block.discarded) value = block.discarded->value;
  });
  if (!value) return false;
  try {
    uint64_t took_ns = 0;
    c10::Storage made;
    {
      Making making(engine_);
      Stopwatch stopwatch(took_ns, nullptr, making.is_timed());
      made = making.make_alone(*value);
    }
    return bring_back(block, made, took_ns);
  } catch (const c10::Error& error) {
    note_failure(block, error.what_without_backtrace());
  } catch (const std::exception& error) {
    note_failure(block, error.what());
  }
  return false;
}

// Another thread may have made them meanwhile. The block is let go of at once: others may not wait for who has no op.
bool Recomputing::bring_back(Block& block, const c10::Storage& made, uint64_t took_ns) {
  return engine_.governing([&](Session& session) {
    session.stats.recompute_ns += took_ns;
    bring_in(session, {made});
    if (block.dead || !block.discarded) return false;
    session.discarding.come_back(block, *made.unsafeGetStorageImpl());
    session.lasting.books.let_go(block);
    return true;
  });
}

void Recomputing::note_failure(Block& block, const std::string& why) {
  engine_.governing([&](Session& session) {
    ++session.stats.failed_recomputations;
    if (block.dead || !block.discarded) return;
    const std::shared_ptr<const Recipe>& recipe = block.discarded->value->recipe;
    block.discarded->why = (recipe ? recipe->op->name + ": " : std::string()) + why;
  });
}

}  // namespace memfit
