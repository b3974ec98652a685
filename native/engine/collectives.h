// Collectives: they go on after they have returned, so what they were given stays where it is until their Work is complete.
//
// So does what they have made on their way. Pinned is what gloo's threads make for themselves, which use it through raw
// pointers between ops; and all that a collective without a Work was given.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

#include "books.h"
#include "recorder.h"
#include "restoring.h"
#include "scratch.h"
#include "thread_state.h"
#include "turns.h"

namespace memfit {

class Collectives {
 public:
  // A c10d::Work; its header is there only where torch was built with it.
  using Work = c10::intrusive_ptr<torch::CustomClassHolder>;

  // Methods are called with the mutex held. Those that ask Works, or drop them, let go of it meanwhile, and of the
  // interpreter: a Work may wait for either.
  Collectives(std::mutex& mutex, Books& books, Turns& turns, Scratch& scratch)
      : mutex_(mutex), books_(books), turns_(turns), scratch_(scratch) {}

  // For any thread, without the mutex: whether there is one that may have yet to complete.
  bool any() const { return any_.load(std::memory_order_relaxed); }

  // The thread's collective begins, with its inputs in the arena, and has returned.
  void begins(ThreadState& thread, c10::ArrayRef<const c10::IValue> inputs) const;
  void returned(ThreadState& thread, uint64_t op, c10::ArrayRef<c10::IValue> outputs);
  // The session's recorder, from now on until null. What is recorded of a storage is that it was read all the time that it
  // was not to move, so that no plan wants it elsewhere.
  void record_to(Recorder* recorder) { recorder_ = recorder; }
  // Of those that have yet to complete, too.
  void record_pending() const;
  // Those that follow are one, and their Works know nothing of its end; and no longer.
  void coalesce(bool on) { coalesces_ = on; }

  // The program has waited for that Work (by identity): on a host its collective has ended, and elsewhere it may.
  void is_over(const void* work);
  // An op begins: a few are asked. While a recording is under way those that the program has yet to wait for go on, as they
  // would if they took longer.
  void reap_few() { reap(kFew, recorder_ != nullptr && recorder_->on()); }
  // All are asked. Whether any was complete.
  bool reap() { return reap(SIZE_MAX, /*has_patience=*/false); }
  // What an op lacks: room for itself, or for what they are yet to make beside it.
  enum class For { kRoom, kScratch };
  // Waits until one is complete, or some op has let go of storages. False if there is none that could be waited for, or it takes
  // too long: what it waits for may come only after what the program does next.
  bool wait(ThreadState& thread, For what);
  // The session ends: what has yet to complete keeps what it was given for good.
  void close();
  // In a forked child: they are its parent's.
  void forget();

 private:
  struct Pending {
    Work work;
    std::vector<Block*> blocks;  // active until it is complete: what it was given,
    size_t given = 0;            // so many of them, and what it has made
    bool is_hopeless = false;  // to wait for: it was in vain, or only the program's own `wait` completes it
    uint64_t recording = 0;    // that it was begun in, if any,
    int64_t begun_at = 0;      // and how many ops that had had
    Scratch::Share scratch;
    bool is_waited_for = false;  // by the program
  };

  struct Asked {
    Work work;
    bool is_waited_for;
  };

  bool is_worth_waiting() const;
  std::vector<Asked> some(size_t most);
  std::vector<Pending> take(const std::vector<Work>& over);
  bool is_on_host() const { return !pending_.front().blocks.front()->device->is_asynchronous(); }
  bool reap(size_t most, bool has_patience);
  void record(const Pending& one) const;
  bool end(std::vector<Work> works, std::vector<Pending> over);
  template <typename Action>
  void unlocked(const Action& action);

  static constexpr size_t kFew = 8;

  std::mutex& mutex_;
  Books& books_;
  Turns& turns_;
  Scratch& scratch_;
  Restoring restoring_{books_};
  std::vector<Pending> pending_;
  std::atomic<bool> any_{false};
  size_t next_ = 0;  // the first to be asked
  Recorder* recorder_ = nullptr;
  bool coalesces_ = false;
};

}  // namespace memfit
