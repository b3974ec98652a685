#include "recomputing.h"

#include <c10/core/CPUAllocator.h>
#include <pybind11/gil.h>

#include <cstring>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "engine.h"
#include "observer.h"
#include "pointers.h"
#include "stopwatch.h"
#include "values.h"

namespace memfit {

namespace {

// The thread's own op, if it is in the midst of one, is set aside.
class Aside {
 public:
  Aside() : thread_(this_thread()), own_(std::exchange(thread_, ThreadState())) {
    thread_.recomputing = true;
    thread_.suspended = own_.suspended + (own_.in_frame ? 1 : 0);
  }
  ~Aside() { thread_ = std::move(own_); }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

 private:
  ThreadState& thread_;
  ThreadState own_;
};

// One value, and those that it needs first.
class Making {
 public:
  explicit Making(Engine& engine) : engine_(engine) {}

  c10::Storage make(const Value& value) {
    const std::shared_ptr<const Recipe> recipe = recipe_of(value);
    if (!recipe) throw std::runtime_error("what they were made from is gone");
    std::vector<c10::Storage> storages;
    for (const Operand& operand : recipe->operands) storages.push_back(storage_of(operand));
    ReRun again(recipe, std::move(storages));
    ThreadState& thread = this_thread();
    const OpInfo& op = *recipe->op;
    engine_.op_begins(thread, op, again.inputs(), -1, -1);
    try {
      again.run();
    } catch (...) {
      engine_.op_ends(thread, op, {});
      throw;
    }
    engine_.op_ends(thread, op, again.outputs());
    return again.result(value);
  }

 private:
  // (Another thread's op may take it away.)
  std::shared_ptr<const Recipe> recipe_of(const Value& value) {
    Lock lock(engine_);
    return value.recipe;
  }

  c10::Storage storage_of(const Operand& operand) {
    if (!operand.is_defined) return {};
    if (!operand.constant.empty()) return fresh(operand.constant.size(), operand.constant);
    if (!operand.value) return fresh(0);
    const Value& value = *operand.value;
    auto known = made_.find(&value);
    if (known != made_.end()) return known->second;
    c10::Storage storage = source(value);
    if (!storage) storage = value.is_blank ? fresh(value.bytes) : make(value);
    made_.emplace(&value, storage);
    return storage;
  }

  // The storage that still has these bytes. If only its Python object holds it, a reference takes the interpreter.
  c10::Storage source(const Value& value) {
    {
      Lock lock(engine_);
      if (value.block == nullptr) return {};
      if (Books::StorageRef reference = reference_to_storage(*value.block)) return c10::Storage(std::move(reference));
    }
    pybind11::gil_scoped_acquire interpreter;
    Lock lock(engine_);
    c10::StorageImpl* storage = value.block != nullptr ? storage_behind(*value.block) : nullptr;
    return storage != nullptr ? c10::Storage(Books::StorageRef::reclaim_copy(storage)) : c10::Storage();
  }

  // Nobody else has its address, so that it may move at once.
  c10::Storage fresh(size_t bytes, const std::string& content = {}) {
    at::DataPtr data = c10::GetCPUAllocator()->allocate(bytes);
    if (!content.empty()) std::memcpy(data.get(), content.data(), content.size());
    c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), c10::GetCPUAllocator(), /*resizable=*/true);
    engine_.adopt(storage);
    return storage;
  }

  Engine& engine_;
  std::unordered_map<const Value*, c10::Storage> made_;
};

}  // namespace

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
      Stopwatch stopwatch(took_ns);
      made = Making(engine_).make(*value);
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
    Block* from = session.lasting.books.find(*made.unsafeGetStorageImpl());
    if (from == nullptr) throw std::runtime_error("they came out elsewhere");
    Books::hold({from});  // it may have left already
    bool is_there = session.room.make_available(*from, 0);
    while (!is_there && session.room.may_come(this_thread(), from->bytes)) is_there = session.room.make_available(*from, 0);
    Books::let_go(*from);
    if (!is_there) throw std::runtime_error("there is no room for them");
    if (block.dead || !block.discarded) return false;
    session.discarding.come_back(block, *made.unsafeGetStorageImpl());
    Books::let_go(block);
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
