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
  explicit Ghosts(Books& books) : books_(books) {}

  // Take the place of torch's allocator of device meta, for good. Call it with no lock held.
  static void watch();
  // Whether a session watches them; asked without a lock, too.
  bool are_watched() const { return recorder_.load(std::memory_order_relaxed) != nullptr; }
  // The session's recorder, from now on until null.
  void record_to(Recorder* recorder) { recorder_.store(recorder); }
  // A new recording begins with those there are.
  void record_all() const;

  Block* allocate(ThreadState& thread, size_t bytes, int64_t source);
  void release(Block* ghost);
  // The storage's ghost. It has none yet if it is older than the session, or if a resize gave it its bytes (`is_new`).
  Block* of(ThreadState& thread, const c10::Storage& storage, bool is_new);
  void touch(ThreadState& thread, const c10::Storage& storage, bool write, bool reads_data);

 private:
  Block* add(size_t bytes);
  // The recorder that is on; null: none is.
  Recorder* recording() const;
  void begins(ThreadState& thread, Block& ghost, int64_t source);
  void ends(const Block& ghost);

  Books& books_;
  std::atomic<Recorder*> recorder_{nullptr};
  std::vector<Block*> ghosts_;
};

}  // namespace memfit
