#include "lifelines.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "descriptors.h"
#include "tier.h"

namespace memfit {

namespace {

bool make_pipe(int (&ends)[2]) {
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  for (int& end : ends) end = above_standard_streams(end);
  if (ends[0] >= 0 && ends[1] >= 0) return true;
  for (int end : ends)
    if (end >= 0) close(end);
  return false;
}

}  // namespace

Lifelines::Lifelines() {
  int ends[2];
  if (!make_pipe(ends)) throw TierFailure(std::string("the tier cannot make a pipe for a forked child: ") + strerror(errno));
  read_end_ = ends[0], write_end_ = ends[1];
}

Lifelines::~Lifelines() {
  close_read_ends();
  if (write_end_ >= 0) close(write_end_);
}

bool Lifelines::any_child() {
  forget_ended();
  if (is_shared_ && ends_.size() < kMostPipes) {
    let_go();
    forget_ended();
  }
  return is_shared_ || !ends_.empty();
}

// Of the pipe that children share: from now on it closes with the last of them. The next child gets another one;
// without any more, these count as alive for now.
void Lifelines::let_go() {
  int ends[2];
  if (!make_pipe(ends)) return;
  close(write_end_);
  ends_.push_back(read_end_);
  read_end_ = ends[0], write_end_ = ends[1];
  is_shared_ = false;
}

void Lifelines::forget_ended() {
  auto has_ended = [](int end) {
    pollfd state{end, POLLIN, 0};
    if (poll(&state, 1, 0) <= 0 || (state.revents & POLLHUP) == 0) return false;
    close(end);
    return true;
  };
  ends_.erase(std::remove_if(ends_.begin(), ends_.end(), has_ended), ends_.end());
}

void Lifelines::hold_on() { close_read_ends(); }

void Lifelines::close_read_ends() {
  for (int end : ends_) close(end);
  ends_.clear();
  if (int end = std::exchange(read_end_, -1); end >= 0) close(end);
}

}  // namespace memfit
