// Of PageFrames: rows that an op's arguments name come in all at once, before the op touches them one by one.
#include <algorithm>
#include <tuple>
#include <utility>

#include "../stopwatch.h"
#include "page_frames.h"

namespace memfit {

namespace {

// A disk that has not in memory what is read waits for each row, but not if it is told of all of them first; which is a
// call for each, in vain otherwise. It is told the next times after one that was slow.
constexpr uint64_t kSlowReadNs = 20'000;
constexpr int kSlowBrings = 64;

}  // namespace

// As far as there are frames for them all: otherwise the first would be gone when they are wanted. What cannot be had is
// told when it is touched.
void PageFrames::bring(Paged& paged, const std::vector<size_t>& offsets, size_t bytes, Mapped::How how) try {
  std::lock_guard<std::mutex> lock(mutex_);
  Stopwatch stopwatch(figures_.fault_ns);
  // Rows that are read and then written to, as in training, are opened for that once and not twice.
  const bool will_be_written = how.for_writing || std::exchange(paged.is_trained, false);
  paged.is_trained = how.for_writing;
  order_.op_names_rows();
  const Wanted wanted = this->wanted(paged, offsets, bytes, how.for_writing);
  make_room_together(wanted.bytes, how.is_undisturbed);
  bring_in_together(paged, wanted, will_be_written);
  for (const Run& run : wanted.read_only) {
    faults_->set_writable(paged.at(run.first), paged.length(run.first, run.count), true);
    std::fill_n(paged.states.begin() + static_cast<std::ptrdiff_t>(run.first), run.count, Paged::kDirty);
  }
} catch (const TierFailure&) {
  // Likewise.
}

PageFrames::Wanted PageFrames::wanted(Paged& paged, const std::vector<size_t>& offsets, size_t bytes, bool for_writing) const {
  Wanted found;
  const size_t size = paged.request.chunk, most = bounce_.size() / size, room = limit_ - limit_ / 4;
  const auto add = [&](std::vector<Run>& runs, size_t chunk) {
    Run* last = runs.empty() ? nullptr : &runs.back();
    if (last != nullptr && last->first + last->count == chunk && last->count < most && paged.lie_together(chunk - 1, chunk))
      ++last->count;
    else
      runs.push_back({chunk, 1});
  };
  size_t next = 0;
  for (const size_t offset : offsets)
    for (size_t chunk = std::max(next, offset / size); chunk < std::min(paged.states.size(), (offset + bytes - 1) / size + 1); ++chunk) {
      next = chunk + 1;
      paged.named[chunk] = order_.namings();
      const bool is_absent = paged.states[chunk] == Paged::kAbsent;
      if (paged.states[chunk] == Paged::kClean && for_writing) add(found.read_only, chunk);
      if (!is_absent || found.bytes + paged.length(chunk) > room) continue;
      found.bytes += paged.length(chunk);
      add(found.absent, chunk);
    }
  return found;
}

void PageFrames::make_room_together(size_t bytes, bool is_undisturbed) {
  std::vector<Frame> leaving;
  for (size_t there = figures_.frame_bytes; there + bytes > limit_ && order_.size() != 0; there -= leaving.back().bytes)
    leaving.push_back(order_.take(FrameOrder::For::kRowsToCome, limit_));
  std::sort(leaving.begin(), leaving.end(), [](const Frame& a, const Frame& b) { return std::tie(a.of, a.chunk) < std::tie(b.of, b.chunk); });
  std::vector<PageFaults::Stretch> gone;
  for (size_t i = 0, count = 0; i < leaving.size(); i += count) {
    Paged& paged = *leaving[i].of;
    const size_t first = leaving[i].chunk;
    const auto is_next = [&](const Frame& frame) {
      return frame.of == &paged && frame.chunk == first + count && paged.states[frame.chunk] == paged.states[first] &&
             paged.lie_together(first, frame.chunk);
    };
    for (count = 1; i + count < leaving.size() && is_next(leaving[i + count]);) ++count;
    if (!can_leave(paged, {first, count}, is_undisturbed)) {
      for (size_t k = i; k < i + count; ++k) order_.put_back(leaving[k]);
      continue;
    }
    gone.push_back({paged.at(first), paged.length(first, count)});
    std::fill_n(paged.states.begin() + static_cast<std::ptrdiff_t>(first), count, Paged::kAbsent);
    figures_.frame_bytes -= gone.back().size;
  }
  faults_->drop_all(gone);
}

void PageFrames::bring_in_together(Paged& paged, const Wanted& wanted, bool is_writable) {
  if (slow_reads_ != 0) {
    --slow_reads_;
    for (const Run& run : wanted.absent) paged.expect(run.first, run.count);
  }
  uint64_t read_ns = 0;
  for (const Run& run : wanted.absent) {
    const size_t length = paged.length(run.first, run.count);
    if (figures_.frame_bytes + length > limit_) return;
    const bool is_stored = paged.places[run.first] != Paged::kNowhere;
    if (is_stored) {
      Stopwatch stopwatch(read_ns);
      paged.get(run.first, run.count, bounce_.data());
      figures_.bytes_in += paged.filled(run.first, run.count);
    }
    faults_->fill(paged.at(run.first), is_stored ? bounce_.data() : nullptr, length, is_writable);
    add(paged, run, is_writable);
  }
  if (read_ns > wanted.absent.size() * kSlowReadNs) slow_reads_ = kSlowBrings;
}

}  // namespace memfit
