#include "page_frames.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/sizes.h"
#include "../stopwatch.h"

namespace memfit {

namespace {

// Of the newest, so many stay: an instruction may touch several chunks, and so may the other threads' at the same time.
constexpr size_t kInUse = 12;

}  // namespace

class PageFrames::Paged final : public Mapped {
 public:
  Paged(std::shared_ptr<PageFrames> frames, const Request& request)
      : request(request), states((request.bytes + request.chunk - 1) / request.chunk, kAbsent),
        places(states.size(), request.source == nullptr ? kNowhere : request.source == request.extent ? kStored : kInSource), page_frames_(std::move(frames)) {
    base = page_frames_->faults_->reserve(space());
  }
  ~Paged() override {
    page_frames_->forget(*this);
    give_up_old();
  }

  char* address() const override { return base; }
  void settle() override {
    page_frames_->settle(*this);
    give_up_old();
  }
  void bring(const std::vector<size_t>& offsets, size_t bytes, bool for_writing) override {
    page_frames_->bring(*this, offsets, bytes, for_writing);
  }
  std::string failure() override {
    std::lock_guard<std::mutex> lock(page_frames_->mutex_);
    return why;
  }
  void fails(const char* because) {
    if (why.empty()) why = because;
  }

  // Its addresses, in whole pages.
  size_t space() const { return round_up(request.bytes, kFaultPage); }
  char* at(size_t chunk) const { return base + chunk * request.chunk; }
  size_t offset(size_t chunk) const { return chunk * request.chunk; }
  // What a chunk takes in memory, and what it has of the storage.
  size_t length(size_t chunk) const { return std::min(request.chunk, space() - offset(chunk)); }
  size_t filled(size_t chunk) const { return std::min(request.chunk, request.bytes - offset(chunk)); }

  void give_up_old() {
    if (old != nullptr) request.tier->release(std::exchange(old, nullptr));
  }

  const Request request;
  Extent old = nullptr;  // its bytes were there, and nothing else has them
  char* base = nullptr;
  std::vector<State> states;
  enum Place : uint8_t { kNowhere, kInSource, kStored };
  std::vector<Place> places;  // where the tier has its bytes, older ones perhaps
  bool is_new = request.source == nullptr;  // what it holds is all of the op that runs, and worth nothing if that fails
  std::string why;

 private:
  std::shared_ptr<PageFrames> page_frames_;
};

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

std::shared_ptr<Mapped> PageFrames::map(const Request& request) {
  auto paged = std::make_shared<Paged>(shared_from_this(), request);
  std::lock_guard<std::mutex> lock(mutex_);
  bounce_.resize(std::max(bounce_.size(), request.chunk));
  paged_[paged->base] = paged.get();
  if (request.source != request.extent) paged->old = request.source;
  return paged;
}

void PageFrames::set_limit(size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  limit_ = bytes;
  make_room(0);
}

bool PageFrames::is_empty() {
  std::lock_guard<std::mutex> lock(mutex_);
  return paged_.empty();
}

void PageFrames::set_leaving(Leaves which) {
  std::lock_guard<std::mutex> lock(mutex_);
  leaves_ = which;
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
  if (paged.states[chunk] == kAbsent) return bring_in(paged, chunk, is_write);
  if (!is_write) return faults_->wake(paged.at(chunk), paged.length(chunk));
  faults_->set_writable(paged.at(chunk), paged.length(chunk), true);
  paged.states[chunk] = kDirty;
}

void PageFrames::bring_in(Paged& paged, size_t chunk, bool is_write) {
  make_room(paged.length(chunk));
  const bool is_stored = paged.places[chunk] != Paged::kNowhere;
  if (is_stored) read(paged, chunk);
  faults_->fill(paged.at(chunk), is_stored ? bounce_.data() : nullptr, paged.length(chunk), is_write);
  paged.states[chunk] = is_write ? kDirty : kClean;
  frames_.push_back({&paged, chunk});
  figures_.frame_bytes += paged.length(chunk);
  figures_.peak_frame_bytes = std::max(figures_.peak_frame_bytes, figures_.frame_bytes);
}

// Into `bounce_`. What cannot be read is zeros to an op that fails.
void PageFrames::read(Paged& paged, size_t chunk) {
  try {
    get(paged, chunk);
    figures_.bytes_in += paged.filled(chunk);
  } catch (const std::exception& error) {
    paged.fails(error.what());
    std::memset(bounce_.data(), 0, paged.length(chunk));
  }
}

void PageFrames::get(const Paged& paged, size_t chunk) {
  const Request& request = paged.request;
  const Extent from = paged.places[chunk] == Paged::kInSource ? request.source : request.extent;
  const size_t filled = paged.filled(chunk);
  std::memset(bounce_.data() + filled, 0, paged.length(chunk) - filled);
  request.tier->get_part(from, request.bytes, paged.offset(chunk), bounce_.data(), filled);
}

void PageFrames::put(Paged& paged, size_t chunk, const char* bytes) {
  const Request& request = paged.request;
  request.tier->write_part(request.extent, request.bytes, paged.offset(chunk), bytes, paged.filled(chunk));
  paged.places[chunk] = Paged::kStored;
  figures_.bytes_out += paged.filled(chunk);
}

void PageFrames::make_room(size_t bytes) {
  for (size_t stuck = 0; figures_.frame_bytes + bytes > limit_ && stuck < frames_.size();)
    if (!leave(stuck == 0 ? next_to_leave() : stuck - 1)) ++stuck;
}

size_t PageFrames::next_to_leave() const {
  if (leaves_ == Leaves::kOldest) return 0;
  return frames_.size() > kInUse ? frames_.size() - 1 - kInUse : 0;
}

// False, and it stays, when it cannot be written back and may be the only copy of what was before the op.
bool PageFrames::leave(size_t frame) {
  const auto [paged, chunk] = frames_[frame];
  try {
    if (paged->states[chunk] == kDirty) write_back(*paged, chunk);
  } catch (const std::exception& error) {
    if (!paged->is_new) return false;
    paged->fails(error.what());
  }
  faults_->drop(paged->at(chunk), paged->length(chunk));
  paged->states[chunk] = kAbsent;
  figures_.frame_bytes -= paged->length(chunk);
  frames_.erase(frames_.begin() + static_cast<std::ptrdiff_t>(frame));
  return true;
}

// Whoever writes meanwhile waits, and dirties it anew.
void PageFrames::write_back(Paged& paged, size_t chunk) {
  faults_->set_writable(paged.at(chunk), paged.length(chunk), false);
  paged.states[chunk] = kClean;
  try {
    put(paged, chunk, paged.at(chunk));
  } catch (...) {
    faults_->set_writable(paged.at(chunk), paged.length(chunk), true);
    paged.states[chunk] = kDirty;
    throw;
  }
}

// What nobody has touched holds nothing; the tier is given zeros, so that it can be read like all else.
void PageFrames::settle(Paged& paged) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t chunk = 0; chunk < paged.states.size(); ++chunk) {
    if (paged.states[chunk] == kDirty) write_back(paged, chunk);
    if (paged.places[chunk] == Paged::kStored) continue;
    if (paged.places[chunk] == Paged::kInSource)
      get(paged, chunk);
    else
      std::memset(bounce_.data(), 0, paged.filled(chunk));
    put(paged, chunk, bounce_.data());
  }
  paged.is_new = false;
}

// As far as there are frames for them all: otherwise the first would be gone when they are wanted. What cannot be had is
// told when it is touched.
void PageFrames::bring(Paged& paged, const std::vector<size_t>& offsets, size_t bytes, bool for_writing) try {
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t last = paged.states.size() - 1;
  size_t room = limit_ / 2;
  for (const size_t offset : offsets)
    for (size_t chunk = offset / paged.request.chunk; chunk <= std::min(last, (offset + bytes - 1) / paged.request.chunk); ++chunk) {
      const State state = paged.states[chunk];
      if (state == kDirty || (state == kClean && !for_writing)) continue;
      if (room < paged.length(chunk)) return;
      room -= paged.length(chunk);
      touch(paged, chunk, for_writing);
    }
} catch (const TierFailure&) {
  // Likewise.
}

void PageFrames::forget(Paged& paged) {
  std::lock_guard<std::mutex> lock(mutex_);
  frames_.erase(std::remove_if(frames_.begin(), frames_.end(), [&](const Frame& frame) { return frame.of == &paged; }), frames_.end());
  for (size_t chunk = 0; chunk < paged.states.size(); ++chunk)
    if (paged.states[chunk] != kAbsent) figures_.frame_bytes -= paged.length(chunk);
  paged_.erase(paged.base);
  faults_->release(paged.base, paged.space());
}

}  // namespace memfit
