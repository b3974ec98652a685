// Making: values are made by the recipes that made them, and what they need first.
//
// Nothing is locked meanwhile. A re-run is an op like others, whose inputs come in or are made again themselves. But it is
// none of the program's: neither is it recorded, nor does it count for an iteration.
#pragma once

#include <c10/core/Storage.h>
#include <c10/core/StreamGuard.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "recipe.h"
#include "thread_state.h"

namespace memfit {

class Engine;
struct Session;

// The thread's own op, if it is in the midst of one, is set aside. What runs meanwhile is for a comparison alone, if it is
// `on_trial`: it fails where there is no room for it.
class Aside {
 public:
  explicit Aside(bool on_trial = false);
  ~Aside();
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

 private:
  ThreadState& thread_;
  ThreadState own_;
};

// What a value was made from is not known any more.
struct Forgotten : std::runtime_error {
  Forgotten() : std::runtime_error("what they were made from is gone") {}
};

class Making {
 public:
  explicit Making(Engine& engine);

  // On a device what is made is a part of its work, and the time until it is asked for tells nothing.
  bool is_timed() const { return !in_order_.current_stream(); }
  // A storage with the value's bytes. Raises what its op raises, and std::runtime_error when it cannot be made.
  c10::Storage make(const Value& value);
  // The same where nothing else is made: what is made on the way goes when it has been read for the last time.
  c10::Storage make_alone(const Value& value);
  // One more run of its op, in which the output is to take the place of a copy of one of its operands.
  std::unique_ptr<ReRun> run_over(const std::shared_ptr<const Recipe>& recipe, size_t operand);
  // The values that the recipe makes and anybody may still ask for. `made` knows their storages until they are forgotten.
  std::vector<ValueRef> make_all(const std::shared_ptr<const Recipe>& recipe);
  const c10::Storage& made(const Value& value) const { return made_.at(&value); }
  void forget(const Value& value) { made_.erase(&value); }

 private:
  std::unique_ptr<ReRun> run(const std::shared_ptr<const Recipe>& recipe);
  std::unique_ptr<ReRun> run(const std::shared_ptr<const Recipe>& recipe, std::vector<c10::Storage> storages, const c10::Storage& over = {});
  void count_reads(const Value& value);
  void forget_read(const Recipe& recipe);
  c10::Storage copy_of(const c10::Storage& storage);
  std::shared_ptr<const Recipe> recipe_of(const Value& value);
  std::vector<ValueRef> results_of(const Recipe& recipe);
  c10::Storage storage_of(const Operand& operand);
  c10::Storage source(const Value& value);
  c10::Storage fresh(c10::Device device, size_t bytes, const std::string& content = {});

  Engine& engine_;
  // What is made takes its turn in the session's order of things, whatever stream the thread is in.
  c10::OptionalStreamGuard in_order_;
  std::unordered_map<const Value*, c10::Storage> made_;
  std::unordered_map<const Value*, size_t> reads_left_;  // of what `make_alone` makes on the way
};

// The bytes of storages are in the arena, of all at once: what a re-run has made may have left already. Under the mutex.
// Raises std::runtime_error when there is no room.
void bring_in(Session& session, const std::vector<c10::Storage>& storages);

}  // namespace memfit
