// Preparing: before an op starts, what it uses comes in, and what it will allocate finds room.
#pragma once

#include <c10/util/ArrayRef.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <vector>

#include "admission.h"
#include "adoption.h"
#include "compaction.h"
#include "needs.h"
#include "room.h"
#include "uses.h"

namespace memfit {

class Preparing {
 public:
  struct Parts {
    Books& books;
    Memory& memory;
    const Stats& stats;
    Residency& residency;
    Compaction& compaction;
    Shelf& shelf;
    Planned& planned;
    const Recorder& recorder;
    const Needs& needs;
    Admission& admission;
    Room& room;
    Adoption& adoption;
    Uses& uses;
  };
  explicit Preparing(const Parts& parts) : on_(parts) {}

  // The op's inputs have been touched. It `announced` that it makes so many bytes (0: it may make any). `joins`: it is the
  // first of its frame that uses or makes anything.
  void make_ready(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, size_t announced, bool joins);

 private:
  void bring_in_missing(ThreadState& thread);
  void bring_in(ThreadState& thread, std::vector<Block*>& missing, size_t more);
  void adopt_foreign(ThreadState& thread, size_t more);
  bool is_tight(ThreadState& thread) const;
  void make_roomy(ThreadState& thread, size_t announced);
  void clear_window(ThreadState& thread, size_t announced, bool known);
  bool stays_whole(ThreadState& thread, size_t announced, bool known);
  bool lacks_the_shelf(ThreadState& thread) const;
  bool is_roomy(const ThreadState& thread, size_t want) const;

  const Parts on_;
};

}  // namespace memfit
