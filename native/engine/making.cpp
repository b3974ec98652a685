#include "making.h"

#include <c10/core/Allocator.h>
#include <c10/util/ScopeExit.h>
#include <pybind11/gil.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>

#include "engine.h"
#include "observer.h"
#include "pointers.h"

namespace memfit {

namespace {

// No other thread's op runs while this lives.
class Alone {
 public:
  explicit Alone(Engine& engine) : engine_(engine) {
    if (engine.governing([](Session& session) { return session.lasting.turns.stand_still(this_thread()); })) return;
    let_others_go_on();
    throw std::runtime_error("other threads compute now, and settings that torch has for all of them have changed since");
  }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
  ~Alone() { let_others_go_on(); }

 private:
  void let_others_go_on() {
    engine_.in_session([](Session& session) { session.lasting.turns.move_again(); });
  }

  Engine& engine_;
};

}  // namespace

Aside::Aside(bool on_trial) : thread_(this_thread()), own_(std::exchange(thread_, ThreadState())) {
  thread_.recomputing = true;
  thread_.on_trial = on_trial || own_.on_trial;
  thread_.suspended = Turns::own(own_);
  split_call = nullptr;
}

Aside::~Aside() {
  thread_ = std::move(own_);
  split_call = thread_.split.get();
}

Making::Making(Engine& engine)
    : engine_(engine), in_order_(engine.governing([](Session& session) { return session.memory.device->compute_stream(); })) {}

c10::Storage Making::make(const Value& value) {
  const std::shared_ptr<const Recipe> recipe = recipe_of(value);
  if (!recipe) throw Forgotten();
  c10::Storage made = run(recipe)->result(value);
  forget_read(*recipe);
  return made;
}

c10::Storage Making::make_alone(const Value& value) {
  count_reads(value);
  return make(value);
}

// Each value that is missing is made once, and reads its recipe's operands then.
void Making::count_reads(const Value& value) {
  Lock lock(engine_);
  std::vector<const Value*> wanted{&value};
  while (!wanted.empty()) {
    const std::shared_ptr<const Recipe> recipe = wanted.back()->recipe;
    wanted.pop_back();
    if (!recipe) continue;
    for (const Operand& operand : recipe->operands)
      if (operand.value && operand.value->block == nullptr && ++reads_left_[operand.value.get()] == 1) wanted.push_back(operand.value.get());
  }
}

void Making::forget_read(const Recipe& recipe) {
  for (const Operand& operand : recipe.operands) {
    auto left = reads_left_.find(operand.value.get());
    if (left != reads_left_.end() && --left->second == 0) made_.erase(left->first);
  }
}

std::vector<ValueRef> Making::make_all(const std::shared_ptr<const Recipe>& recipe) {
  std::vector<ValueRef> made = results_of(*recipe);
  if (made.empty()) return made;
  const std::unique_ptr<ReRun> again = run(recipe);
  for (const ValueRef& value : made) {
    if (value->written >= 0) made_.erase(recipe->operands[value->written].value.get());  // its bytes are others now
    made_.insert_or_assign(value.get(), again->result(*value));
  }
  return made;
}

std::unique_ptr<ReRun> Making::run(const std::shared_ptr<const Recipe>& recipe) {
  std::vector<c10::Storage> storages;
  for (const Operand& operand : recipe->operands) storages.push_back(storage_of(operand));
  return run(recipe, std::move(storages));
}

std::unique_ptr<ReRun> Making::run_over(const std::shared_ptr<const Recipe>& recipe, size_t operand) {
  std::vector<c10::Storage> storages;
  for (const Operand& each : recipe->operands) storages.push_back(storage_of(each));
  const c10::Storage copy = copy_of(storages[operand]);
  for (size_t i = 0; i < storages.size(); ++i)
    if (recipe->operands[i].value == recipe->operands[operand].value) storages[i] = copy;
  return run(recipe, std::move(storages), copy);
}

c10::Storage Making::copy_of(const c10::Storage& storage) {
  c10::Storage copy = fresh(storage.device(), storage.nbytes());
  engine_.governing([&](Session& session) {
    bring_in(session, {storage, copy});
    const Block* from = session.lasting.books.find(*storage.unsafeGetStorageImpl());
    const Block* to = session.lasting.books.find(*copy.unsafeGetStorageImpl());
    session.memory.device->copy(to->address(), from->address(), from->bytes);
  });
  return copy;
}

std::unique_ptr<ReRun> Making::run(const std::shared_ptr<const Recipe>& recipe, std::vector<c10::Storage> storages,
                                   const c10::Storage& over) {
  auto again = std::make_unique<ReRun>(recipe, std::move(storages));
  ThreadState& thread = this_thread();
  const OpInfo& op = *recipe->op;
  engine_.op_begins(thread, op, again->inputs(), -1, -1);
  if (over) engine_.governing([&](Session& session) { thread.over = session.lasting.books.find(*over.unsafeGetStorageImpl()); });
  try {
    std::optional<Alone> alone;
    if (recipe->surroundings->differ_for_all(Surroundings::now())) alone.emplace(engine_);
    again->run();
  } catch (...) {
    engine_.op_ends(thread, op, {});
    throw;
  }
  engine_.op_ends(thread, op, again->outputs());
  return again;
}

// (Another thread's op may take it away.)
std::shared_ptr<const Recipe> Making::recipe_of(const Value& value) {
  Lock lock(engine_);
  return value.recipe;
}

std::vector<ValueRef> Making::results_of(const Recipe& recipe) {
  Lock lock(engine_);
  std::vector<ValueRef> alive;
  for (const std::weak_ptr<Value>& result : recipe.results)
    if (ValueRef value = result.lock(); value && value->recipe.get() == &recipe) alive.push_back(std::move(value));
  return alive;
}

c10::Storage Making::storage_of(const Operand& operand) {
  if (!operand.is_defined) return {};
  if (!operand.constant.empty()) return fresh(operand.device, operand.constant.size(), operand.constant);
  if (!operand.value) return fresh(operand.device, operand.stand_in);
  const Value& value = *operand.value;
  auto known = made_.find(&value);
  if (known != made_.end()) return known->second;
  c10::Storage storage = source(value);
  if (!storage) storage = value.is_blank && !recipe_of(value) ? fresh(operand.device, value.bytes) : make(value);
  made_.emplace(&value, storage);
  return storage;
}

// The storage that still has these bytes. If only its Python object holds it, a reference takes the interpreter.
c10::Storage Making::source(const Value& value) {
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
c10::Storage Making::fresh(c10::Device device, size_t bytes, const std::string& content) {
  c10::Allocator* own = engine_.governing(
      [&](Session& session) { return session.memory.device->has(device) ? &session.memory.device->own() : nullptr; });
  c10::Allocator* allocator = own != nullptr ? own : c10::GetAllocator(device.type());  // a GPU's is torch's own one
  at::DataPtr data = allocator->allocate(bytes);
  if (!content.empty()) std::memcpy(data.get(), content.data(), content.size());  // a constant is the host's
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), allocator, /*resizable=*/true);
  engine_.adopt(storage);
  return storage;
}

void bring_in(Session& session, const std::vector<c10::Storage>& storages) {
  const Books& books = session.lasting.books;
  std::vector<Block*> blocks;
  for (const c10::Storage& storage : storages) blocks.push_back(books.find(*storage.unsafeGetStorageImpl()));
  if (std::count(blocks.begin(), blocks.end(), nullptr) != 0) throw std::runtime_error("they came out elsewhere");
  Books::hold(blocks);
  const auto at_end = c10::make_scope_exit([&] {
    for (Block* block : blocks) books.let_go(*block);
  });
  for (Block* block : blocks) {
    bool is_there = session.room.make_available(*block, 0);
    while (!is_there && session.room.may_come(this_thread(), block->bytes)) is_there = session.room.make_available(*block, 0);
    if (!is_there) throw std::runtime_error("there is no room for them");
  }
}

}  // namespace memfit
