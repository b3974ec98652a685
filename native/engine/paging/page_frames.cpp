#include "page_frames.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/sizes.h"
#include "../stopwatch.h"

namespace memfit {

namespace {

constexpr size_t kAtOnce = size_t{128} << 10;  // so many bytes of neighbouring rows come in by one call

}  // namespace

void refuse_mapping(const char* what) {
  throw TierFailure(std::string("mapped memory cannot be ") + what + ": " + strerror(errno) +
                    "; run with --map never, or raise the limit that refuses it (ulimit -v, ulimit -n, vm.max_map_count)");
}

PageFrames::PageFrames(Mechanism mechanism, Mortality mortality) {
  const auto serving = [this](char* touched, bool is_write) { serve(touched, is_write); };
  if (mechanism != Mechanism::kSignals) faults_ = faults_by_userfaultfd(serving, mortality);
  if (!faults_ && mechanism != Mechanism::kUserfaults) faults_ = faults_by_signals(serving);
  if (!faults_) throw TierFailure("this system refuses userfaultfd");
}

PageFrames::~PageFrames() = default;

std::shared_ptr<Mapped> PageFrames::map(const Paged::Request& request) {
  auto paged = std::make_shared<Paged>(shared_from_this(), request);
  std::lock_guard<std::mutex> lock(mutex_);
  bounce_.resize(std::max({bounce_.size(), request.chunk, kAtOnce}));
  paged_[paged->base] = paged.get();
  if (!paged->is_table()) order_.set(request.access == Access::kSweeps ? FrameOrder::Leaves::kNewest : FrameOrder::Leaves::kOldest);
  if (request.source != request.extent) paged->old = request.source;
  return paged;
}

void PageFrames::set_limit(size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  limit_ = bytes;
  make_room(0, FrameOrder::For::kOthers);
}

bool PageFrames::is_empty() {
  std::lock_guard<std::mutex> lock(mutex_);
  return paged_.empty();
}

std::string PageFrames::failure(const Paged& paged) {
  std::lock_guard<std::mutex> lock(mutex_);
  return paged.why;
}

PageFrames::Figures PageFrames::figures() {
  std::lock_guard<std::mutex> lock(mutex_);
  return figures_;
}

// Nothing may be thrown from here: who touches would never go on. The op fails when it ends.
void PageFrames::serve(char* touched, bool is_write) {
  std::lock_guard<std::mutex> lock(mutex_);
  Stopwatch stopwatch(figures_.fault_ns);
  ++figures_.faults;
  auto next = paged_.upper_bound(touched);
  if (next == paged_.begin()) return;
  Paged& paged = *std::prev(next)->second;
  const size_t chunk = static_cast<size_t>(touched - paged.base) / paged.request.chunk;
  if (chunk >= paged.states.size()) return;
  try {
    touch(paged, chunk, is_write);
  } catch (const std::exception& error) {
    paged.fails(error.what());
  }
}

void PageFrames::touch(Paged& paged, size_t chunk, bool is_write) {
  if (paged.states[chunk] == Paged::kAbsent) return bring_in(paged, chunk, is_write);
  if (!is_write) return faults_->wake(paged.at(chunk), paged.length(chunk));
  faults_->set_writable(paged.at(chunk), paged.length(chunk), true);
  paged.states[chunk] = Paged::kDirty;
}

// What cannot be read is zeros to an op that fails.
void PageFrames::bring_in(Paged& paged, size_t chunk, bool is_write) {
  make_room(paged.length(chunk), paged.is_table() ? FrameOrder::For::kTouchedRow : FrameOrder::For::kOthers);
  const bool is_stored = paged.places[chunk] != Paged::kNowhere;
  try {
    if (is_stored) paged.get(chunk, 1, bounce_.data());
    if (is_stored) figures_.bytes_in += paged.filled(chunk);
  } catch (const std::exception& error) {
    paged.fails(error.what());
    std::memset(bounce_.data(), 0, paged.length(chunk));
  }
  faults_->fill(paged.at(chunk), is_stored ? bounce_.data() : nullptr, paged.length(chunk), is_write);
  add(paged, {chunk, 1}, is_write);
}

// They are there now.
void PageFrames::add(Paged& paged, const Run& run, bool is_writable) {
  for (size_t chunk = run.first; chunk < run.first + run.count; ++chunk) {
    paged.states[chunk] = is_writable ? Paged::kDirty : Paged::kClean;
    order_.add({&paged, chunk, paged.length(chunk), paged.named[chunk]});
  }
  figures_.frame_bytes += paged.length(run.first, run.count);
  figures_.peak_frame_bytes = std::max(figures_.peak_frame_bytes, figures_.frame_bytes);
}

void PageFrames::make_room(size_t bytes, FrameOrder::For what) {
  for (size_t stuck = 0; figures_.frame_bytes + bytes > limit_ && stuck < order_.size();)
    if (!leave(order_.take(what, limit_))) ++stuck;
}

bool PageFrames::leave(const Frame& frame) {
  Paged& paged = *frame.of;
  if (!can_leave(paged, {frame.chunk, 1}, /*is_undisturbed=*/false)) return order_.put_back(frame), false;
  faults_->drop(paged.at(frame.chunk), frame.bytes);
  paged.states[frame.chunk] = Paged::kAbsent;
  figures_.frame_bytes -= frame.bytes;
  return true;
}

// What was written to is in the tier. False, and it stays, when it cannot be written there and may be the only copy of
// what was before the op. Nobody has to be kept from writing meanwhile where nobody can.
bool PageFrames::can_leave(Paged& paged, const Run& run, bool is_undisturbed) try {
  if (paged.states[run.first] != Paged::kDirty) return true;
  if (!is_undisturbed) return write_back(paged, run), true;
  paged.put(run.first, run.count, paged.at(run.first));
  figures_.bytes_out += paged.filled(run.first, run.count);
  return true;
} catch (const std::exception& error) {
  if (!paged.is_new) return false;
  paged.fails(error.what());
  return true;
}

// Whoever writes meanwhile waits, and dirties it anew.
void PageFrames::write_back(Paged& paged, const Run& run) {
  const size_t bytes = paged.length(run.first, run.count);
  const auto mark = [&](bool is_writable) {
    faults_->set_writable(paged.at(run.first), bytes, is_writable);
    std::fill_n(paged.states.begin() + static_cast<std::ptrdiff_t>(run.first), run.count, is_writable ? Paged::kDirty : Paged::kClean);
  };
  mark(false);
  try {
    paged.put(run.first, run.count, paged.at(run.first));
    figures_.bytes_out += paged.filled(run.first, run.count);
  } catch (...) {
    mark(true);
    throw;
  }
}

// What nobody has touched holds nothing; the tier is given zeros, so that it can be read like all else.
void PageFrames::settle(Paged& paged) {
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t count = paged.states.size(), most = bounce_.size() / paged.request.chunk;
  const auto is_like = [&](size_t chunk, size_t next) {
    return paged.lie_together(chunk, next) && (paged.states[chunk] == Paged::kDirty) == (paged.states[next] == Paged::kDirty);
  };
  for (Run run{0, 0}; run.first < count; run.first += run.count) {
    for (run.count = 1; run.count < most && run.first + run.count < count && is_like(run.first, run.first + run.count);) ++run.count;
    if (paged.states[run.first] == Paged::kDirty) {
      write_back(paged, run);
    } else if (paged.places[run.first] != Paged::kStored) {
      paged.get(run.first, run.count, bounce_.data());
      paged.put(run.first, run.count, bounce_.data());
      figures_.bytes_out += paged.filled(run.first, run.count);
    }
  }
  paged.is_new = false;
}

void PageFrames::forget(Paged& paged) {
  std::lock_guard<std::mutex> lock(mutex_);
  order_.forget(paged);
  for (size_t chunk = 0; chunk < paged.states.size(); ++chunk)
    if (paged.states[chunk] != Paged::kAbsent) figures_.frame_bytes -= paged.length(chunk);
  paged_.erase(paged.base);
  faults_->release(paged.base, paged.space());
}

}  // namespace memfit
