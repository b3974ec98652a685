// Swaps: which storage leaves after which op of the iteration, and before which op it is on its way back.
//
// A storage is known by its id if it is the same one in every iteration, otherwise by the ordinal of its allocation in
// the iteration. Actions are tied to op indices; the op stream is compared with the plan's, and as soon as it
// differs no more actions are begun until the iteration ends.
// Its members are the table, by op and by storage, and how far the iteration has come in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace memfit {

struct Block;

struct SwapTable {
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Storage {
    uint64_t block_id = 0;  // 0: known by its ordinal,
    uint32_t ordinal = kNone;
    size_t bytes = 0;
    uint32_t again = 0;  // which counts from this op on, one that runs again, less 1; 0: from the iteration's beginning
  };
  struct Swap {
    uint32_t storage = 0;
    uint32_t out_after = 0;  // op indices in the iteration
    uint32_t free_by = 0;    // its bytes are free before this op: a copy that has not ended is waited for
    uint32_t in_start = 0;
    uint32_t take = 0;  // which of the iteration's takes gives it its address back; kNone: it is freed while it is away
  };
  std::vector<uint64_t> op_hashes;
  std::vector<Storage> storages;
  std::vector<Swap> swaps;
};

class Swaps {
 public:
  struct Action {
    enum class Kind : uint32_t { kFinishOut, kStartIn } kind;
    uint32_t swap;
  };
  template <typename T>
  struct Span {
    const T* first;
    const T* last;
    const T* begin() const { return first; }
    const T* end() const { return last; }
  };

  // `at_once`: an iteration begins now; otherwise the first whole one is waited for.
  Swaps(SwapTable table, bool at_once);

  // The next op begins. True while the op stream is the plan's.
  bool on_op(uint64_t name_hash);
  // The actions that are due before it, and after any of the plan's ops.
  Span<Action> before() const;
  Span<uint32_t> after(size_t op) const;
  bool on_course() const { return on_course_; }
  void on_allocation(Block& block) { bind_as(0, allocations_++, block); }
  // The same, of an op that runs again; `number`: which of its allocations it is, if that is known.
  void on_allocation_again(Block& block, std::optional<uint32_t> number) {
    allocations_again_ = number.value_or(allocations_again_);
    bind_as(static_cast<uint32_t>(next_op_), allocations_again_++, block);
  }
  void on_release(Block& block);
  // The bytes are another block's from now on.
  void pass_on(Block& from, Block& to);
  void iteration_ends();
  // The program does something else.
  void leave_course() { on_course_ = false, ++derailments_; }
  void bind(Block& block);  // one that is known by its id

  const SwapTable::Swap& swap(uint32_t index) const { return table_.swaps[index]; }
  Block* block_of(uint32_t swap) const { return blocks_[table_.swaps[swap].storage]; }
  // The take that brings back a storage known by its ordinal, the last time in an iteration; kNone if none does.
  uint32_t last_arrival(uint32_t ordinal) const;
  // Whether it is away when it is freed.
  bool leaves_for_good(uint32_t ordinal) const;
  // The take of the swap that brings the storage back next, or has last.
  uint32_t& arrival(const Block& block);
  size_t op() const { return next_op_ - 1; }  // which of the plan's ops has begun last
  size_t next_op() const { return next_op_; }
  uint64_t name_hash(size_t op) const { return table_.op_hashes[op]; }
  size_t ops() const { return table_.op_hashes.size(); }
  Block* block_at(uint32_t storage) const { return blocks_[storage]; }
  uint64_t derailments() const { return derailments_; }
  size_t held() const;  // bytes of the heap

 private:
  void index_actions();
  void bind_as(uint32_t again, uint32_t ordinal, Block& block);

  SwapTable table_;
  std::vector<Block*> blocks_;  // by storage; null while it does not exist
  std::vector<uint32_t> arrivals_;  // by storage; kNone for one that is not swapped
  std::unordered_map<uint64_t, uint32_t> by_ordinal_;  // storages
  std::unordered_map<uint64_t, uint32_t> by_id_;
  std::vector<uint32_t> before_begin_, after_begin_;  // by op, into the lists below
  std::vector<Action> before_;
  std::vector<uint32_t> after_;
  size_t next_op_ = 0;
  uint32_t allocations_ = 0, allocations_again_ = 0;
  bool on_course_;
  uint64_t derailments_ = 0;
};

}  // namespace memfit
