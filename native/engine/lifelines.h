// Lifelines: whether a process that was forked from this one may still be there.
//
// A child inherits the write end of a pipe, which closes by itself once the child and all that were forked from it
// have ended, or called exec. This process keeps that end too until it wants to know: so one pipe serves all children
// that were forked meanwhile, and there is always one for the next.
#pragma once

#include <vector>

namespace memfit {

class Lifelines {
 public:
  Lifelines();  // raises TierFailure when there is no file descriptor for a pipe
  ~Lifelines();
  Lifelines(const Lifelines&) = delete;
  Lifelines& operator=(const Lifelines&) = delete;

  // This process forks now.
  void child_comes() { is_shared_ = true; }
  // Whether a child may still be there.
  bool any_child();
  // In a child: be seen to be there until this goes.
  void hold_on();

 private:
  // With more pipes than this, children that are forked from then on share one, until some have ended.
  static constexpr size_t kMostPipes = 16;

  void let_go();
  void forget_ended();
  void close_read_ends();

  int read_end_ = -1, write_end_ = -1;
  bool is_shared_ = false;    // a child has inherited the write end
  std::vector<int> ends_;  // of pipes that only children hold the other end of
};

}  // namespace memfit
