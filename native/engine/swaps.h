// Swaps: which storage leaves after which op of the iteration, and before which op it is on its way back.
//
// A storage is known by its id if it is the same one in every iteration, otherwise by the ordinal of its allocation in
// the iteration. Actions are tied to op indices.
// Its members are the table, by op and by storage, and which storages there are now.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
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
  std::vector<Storage> storages;
  std::vector<Swap> swaps;
  std::set<std::pair<uint32_t, uint32_t>> maps;  // an op, and a storage that it uses where it waits if it is away
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
    bool empty() const { return first == last; }
  };

  Swaps(SwapTable table, size_t ops);

  // The actions that are due before an op, and after it.
  Span<Action> before(size_t op) const;
  Span<uint32_t> after(size_t op) const;
  // The block is the `number`th allocation of the iteration, or of the op that runs again (`again`: 1 more than it).
  void bind_as(uint32_t again, uint32_t number, Block& block);
  void on_release(Block& block);
  // The bytes are another block's from now on.
  void pass_on(Block& from, Block& to);
  void bind(Block& block);  // one that is known by its id

  // Whether the op uses the block where it waits if it is away.
  bool maps(size_t op, const Block& block) const;
  // Whether it does so with any.
  bool maps_any(size_t op) const;
  const SwapTable::Swap& swap(uint32_t index) const { return table_.swaps[index]; }
  Block* block_of(uint32_t swap) const { return blocks_[table_.swaps[swap].storage]; }
  // The take that brings back a storage known by its ordinal, the last time in an iteration; kNone if none does.
  uint32_t last_arrival(uint32_t ordinal) const;
  // Whether it is away when it is freed.
  bool leaves_for_good(uint32_t ordinal) const;
  // The take of the swap that brings the storage back next, or has last.
  uint32_t& arrival(const Block& block);
  Block* block_at(uint32_t storage) const { return blocks_[storage]; }
  size_t held() const;  // bytes of the heap

 private:
  void index_actions(size_t ops);
  uint32_t left_by(const SwapTable::Swap& swap, size_t ops) const;

  SwapTable table_;
  std::vector<Block*> blocks_;  // by storage; null while it does not exist
  std::vector<uint32_t> arrivals_;  // by storage; kNone for one that is not swapped
  std::unordered_map<uint64_t, uint32_t> by_ordinal_;  // storages
  std::unordered_map<uint64_t, uint32_t> by_id_;
  std::vector<uint32_t> before_begin_, after_begin_;  // by op, into the lists below
  std::vector<Action> before_;
  std::vector<uint32_t> after_;
};

}  // namespace memfit
