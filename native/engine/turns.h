// Turns: threads whose ops do not fit side by side run them one after the other.
//
// An op that has not started yet lets go of its storages while it waits; one that runs keeps its own. So a wait
// ends, or everybody waits, and then somebody's op fails: nothing more would ever be let go of.
// It counts threads by what they do (begun, running, waiting, queued), and has a method for each change of that.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "block.h"

namespace memfit {

struct ThreadState;

class Turns {
 public:
  // Without any op's end for this long, something else is wrong (a lock that the waiter itself holds, say).
  static constexpr std::chrono::milliseconds kPatience{10000};
  // A storage that another thread has made and not used yet is filled at once, or left lying about for good.
  static constexpr std::chrono::milliseconds kShortPatience{500};

  // All methods are called with the mutex held. Waiting lets go of it, and of the interpreter.
  explicit Turns(std::mutex& mutex) : mutex_(mutex) {}

  // The thread's outermost op: it begins (its inputs are brought in), it starts (it holds raw pointers), it is over.
  void op_begins(ThreadState& thread);
  void op_starts(ThreadState& thread);
  void op_is_over(ThreadState& thread);
  bool none_runs() const { return running_ == 0; }
  // Threads without an op too, as those that carry out collectives, or allocate between ops.
  bool any_waits() const { return sleeping_ > 0; }
  int begun() const { return begun_; }
  // No thread has an op, and none is to wait with the next one.
  bool is_idle() const { return begun_ == 0 && !stands_still_; }
  // Whether ops of other threads have begun that do not wait themselves.
  bool others_run(const ThreadState& thread) const { return begun_ - own(thread) > waiting_; }

  // What an op waits for: any storage that is let go of, if only by an op that waits as well, or its turn to begin, which
  // does not come before an op has ended or all others wait.
  enum class For { kRoom, kTurn };
  // False when there is none that could let go (`others_prepare`: they may, without an op), or it takes too long.
  bool wait(ThreadState& thread, For what, std::chrono::milliseconds patience, bool others_prepare);
  void somebody_let_go();

  // Among those that want to begin beside others, who is queued alone may. Whoever comes later does not go first.
  class Queued {
   public:
    explicit Queued(Turns& turns) : turns_(turns) { ++turns_.queued_; }
    ~Queued() { --turns_.queued_; }
    Queued(const Queued&) = delete;
    Queued& operator=(const Queued&) = delete;
    bool is_alone() const { return turns_.queued_ == 1; }

   private:
    Turns& turns_;
  };
  // The bytes that running ops may still allocate.
  size_t promised() const { return promised_; }
  void promise(ThreadState& thread, size_t bytes);
  // Of what the op was promised, so much has been allocated.
  void keep_promise(ThreadState& thread, size_t bytes);

  // No op of another thread is running from here on and none begins until `move_again`, so that everything may move:
  // what stays for an op's sake when a limit or a plan takes effect would lie in the way for good.
  // False: ops that began before still run, and do not wait.
  bool stand_still(const ThreadState& thread);
  void move_again();
  // An op is about to begin.
  void wait_for_standstill(const ThreadState& thread);

  // A session has begun, or it has ended and everybody is to stop waiting.
  void open() { is_open_ = true, stands_still_ = false; }
  void close();
  bool is_open() const { return is_open_; }
  // In a forked child: no other thread came along, and nobody waits.
  void forget(ThreadState& thread);
  // The ops that the thread itself has begun: whoever waits in one does not wait for it.
  static int own(const ThreadState& thread);

 private:
  void step_aside(ThreadState& thread);
  static void step_back(ThreadState& thread);
  bool others_stand(const ThreadState& thread) const { return stands_still_ && standing_ != &thread; }
  template <typename Condition>
  bool wait_without_interpreter(std::chrono::milliseconds patience, const Condition& condition);

  std::mutex& mutex_;
  std::condition_variable_any turn_;
  bool is_open_ = false;
  int begun_ = 0;    // threads with an op
  int running_ = 0;  // those of them whose op has started
  int waiting_ = 0;  // those of them that wait for another's end
  int queued_ = 0;   // and those of these that have not begun, for want of room beside the others
  int sleeping_ = 0;  // threads that wait for any of this, with an op or without
  size_t promised_ = 0;
  uint64_t let_go_ = 0, over_ = 0;  // how often anybody has let go, and how many ops have ended
  bool stands_still_ = false;
  const ThreadState* standing_ = nullptr;  // for whom
};

// Nothing keeps it where it is: neither a user, nor an op that may read a small storage unseen.
inline bool may_move(const Block& block, const Turns& turns) { return block.is_idle() && (!block.small || turns.none_runs()); }

}  // namespace memfit
