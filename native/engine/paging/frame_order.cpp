#include "frame_order.h"

#include <algorithm>
#include <utility>

#include "paged.h"

namespace memfit {

namespace {

// An instruction may touch several chunks, and so may the other threads' at the same time.
constexpr size_t kLeastInUse = 12;
constexpr size_t kLeastRounds = 8;  // with half of them spared, once all were in vain

}  // namespace

size_t Spared::of(size_t frames) const { return all_ ? frames - 1 : std::max(kLeastInUse, frames / 2); }

void Spared::came_in(uint64_t away, size_t frames) {
  const size_t round = std::max(frames, kLeastInUse);
  back_ += away < (all_ ? 2 : 1) * round ? 1 : 0;
  if (++came_ < round) return;
  judge(4 * back_ < (all_ ? 1 : 3) * came_);
  came_ = back_ = 0;
}

// (In the first round after a change come those that had left before it.)
void Spared::judge(bool is_of_use) {
  ++round_;
  if (is_of_use || round_ <= (all_ ? 1 : patience_)) return;
  if (all_) patience_ = std::max(kLeastRounds, 2 * patience_);
  all_ = !all_;
  round_ = 0;
}

void FrameOrder::set(Leaves which) {
  leaves_ = which;
  spared_ = {};
}

void FrameOrder::add(const Frame& frame) {
  if (frame.of->is_table()) return rows_.push_back(frame);
  others_.push_back(frame);
  other_bytes_ += frame.bytes;
  ++came_in_;
  if (std::vector<uint64_t>& left = frame.of->left; !left.empty())
    spared_.came_in(left[frame.chunk] == 0 ? UINT64_MAX : came_in_ - left[frame.chunk], others_.size());
}

Frame FrameOrder::take(For what, size_t limit) {
  const bool is_row = what != For::kOthers || 2 * other_bytes_ <= limit;
  return others_.empty() || (is_row && !rows_.empty()) ? take_row(what == For::kRowsToCome) : take_other();
}

Frame FrameOrder::take_row(bool spares_named) {
  for (size_t looked = 0;; ++looked) {
    Frame frame = rows_.front();
    rows_.pop_front();
    const uint32_t named = frame.of->named[frame.chunk];
    const bool is_in_use = spares_named && named == namings_ && looked < 2 * rows_.size();
    if (named == std::exchange(frame.named, named) && !is_in_use) return frame;
    rows_.push_back(frame);
  }
}

Frame FrameOrder::take_other() {
  const size_t in_use = spared_.of(others_.size());
  const bool is_newest = leaves_ == Leaves::kNewest && others_.size() > in_use;
  const auto next = is_newest ? others_.end() - 1 - static_cast<std::ptrdiff_t>(in_use) : others_.begin();
  const Frame frame = *next;
  others_.erase(next);
  other_bytes_ -= frame.bytes;
  if (std::vector<uint64_t>& left = frame.of->left; !left.empty()) left[frame.chunk] = came_in_;
  return frame;
}

void FrameOrder::put_back(const Frame& frame) {
  if (frame.of->is_table() || leaves_ == Leaves::kOldest) return add(frame);
  others_.push_front(frame);
  other_bytes_ += frame.bytes;
}

void FrameOrder::forget(const Paged& paged) {
  const auto is_its = [&](const Frame& frame) { return frame.of == &paged; };
  rows_.erase(std::remove_if(rows_.begin(), rows_.end(), is_its), rows_.end());
  others_.erase(std::remove_if(others_.begin(), others_.end(), is_its), others_.end());
  other_bytes_ = 0;
  for (const Frame& frame : others_) other_bytes_ += frame.bytes;
}

}  // namespace memfit
