// Ghosts: storages of device meta, which have a size and a life but no bytes. In a session that watches them they
// are recorded like any other, so that a model of any size can be traced; they are in no list that the residency
// code walks, so none of them is ever placed, moved or counted.
//
// torch never asks the meta allocator again when such a storage is resized, so sizes are compared at every touch.
#pragma once

#include <c10/core/Storage.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "books.h"
#include "recorder.h"
#include "thread_state.h"

namespace memfit {

class Ghosts {
 public:
  Ghosts(Books& books, Recorder& recorder) : books_(books), recorder_(recorder) {}

  // Take the place of torch's allocator of device meta, for good. Call it with no lock held.
  static void watch();
  bool are_watched() const { return watched_.load(std::memory_order_relaxed); }
  void set_watched(bool watched) { watched_.store(watched); }
  // A new recording begins with those there are.
  void record_all() const;

  Block* allocate(ThreadState& thread, size_t bytes, int64_t source);
  void release(Block* ghost);
  // The storage's ghost. It has none yet if it is older than the session, or if a resize gave it its bytes (`is_new`).
  Block* of(ThreadState& thread, const c10::Storage& storage, bool is_new);
  void touch(ThreadState& thread, const c10::Storage& storage, bool write, bool reads_data);

 private:
  Block* add(size_t bytes);
  void begins(ThreadState& thread, Block& ghost, int64_t source);
  void ends(const Block& ghost);

  Books& books_;
  Recorder& recorder_;
  std::vector<Block*> ghosts_;
  std::atomic<bool> watched_{false};
};

}  // namespace memfit
