// Books: every storage that the engine answers for, and how it is found. They outlive sessions, as storages do. They have
// a method for each way to find a block, and for each thing that happens to one.
#pragma once

#include <c10/core/Storage.h>
#include <c10/util/flat_hash_map.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "arena.h"
#include "block.h"

namespace memfit {

class Books {
 public:
  using StorageRef = c10::intrusive_ptr<c10::StorageImpl>;

  const std::vector<Block*>& all() const { return blocks_; }
  // Storages that earlier sessions have left behind stay known, but not the places of their iterations.
  void begin_session();
  // Made in the present session, or in the last one.
  bool is_of_session(const Block& block) const { return block.session == session_; }
  uint64_t next_id() { return next_id_++; }
  uint64_t last_id() const { return next_id_ - 1; }
  // The clock's time is the number of outermost ops so far.
  uint64_t tick() { return ++now_; }
  uint64_t now() const { return now_; }
  uint64_t session() const { return session_; }

  Block* add(size_t bytes, Device& device);
  // Its storage is gone. The block goes too, or with the last op that has it on its list.
  void remove(Block* block);
  // They are in use until `let_go`: neither moved, nor forgotten.
  static void hold(const std::vector<Block*>& blocks);
  // An op, or a hold, lets go of the block. True if it is there and nobody uses it any more.
  bool let_go(Block& block) const;
  // The storage's block; nullptr if it is none of the engine's.
  Block* find(const c10::StorageImpl& storage) const;
  Block* find_at(const void* address) const;
  // The block is the storage's: to be called where somebody has a reference to it.
  static void attach(Block& block, const c10::Storage& storage);

  // The block's bytes have come to where it says they are, or are about to leave it.
  void arrives(Block& block) {
    by_address_[block.address()] = &block;
    block.idle_since = now_;
  }
  void arrives(Block& block, c10::StorageImpl& storage);
  void leaves(const Block& block) { by_address_.erase(block.address()); }
  // The block's bytes are given up (`with_pages`: what lies behind them goes back to the system).
  void give_up(Block& block, bool with_pages);

  // The block's bytes are to be made again; and they were, or never will be. How many blocks' are?
  void discarded(Block& block, std::unique_ptr<Discarded> discarded);
  void no_longer_discarded(Block& block);
  // It is to be made from others than before.
  void depends_on(Block& block, std::vector<std::shared_ptr<Value>> sources);
  size_t discarded() const { return discarded_; }

  // References to be dropped once the mutex has been let go of: a storage's death calls back into the engine.
  void bury(StorageRef storage) { graveyard_.push_back(std::move(storage)); }
  std::vector<StorageRef> take_buried() { return std::exchange(graveyard_, {}); }

 private:
  std::vector<Block*> blocks_;
  ska::flat_hash_map<const void*, Block*> by_address_;
  std::vector<StorageRef> graveyard_;
  size_t discarded_ = 0;
  uint64_t next_id_ = 1;
  uint64_t session_ = 0;
  uint64_t now_ = 0;
};

}  // namespace memfit
