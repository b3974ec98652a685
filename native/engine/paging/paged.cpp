#include "paged.h"

#include <cstring>
#include <utility>

#include "page_frames.h"

namespace memfit {

Paged::Paged(std::shared_ptr<PageFrames> frames, const Request& asked)
    : request(asked), states((asked.bytes + asked.chunk - 1) / asked.chunk, kAbsent),
      places(states.size(), asked.source == nullptr ? kNowhere : asked.source == asked.extent ? kStored : kInSource),
      named(states.size(), 0), left(asked.access == Access::kSweeps ? states.size() : 0, 0), page_frames_(std::move(frames)) {
  base = page_frames_->faults_->reserve(space());
}

Paged::~Paged() {
  page_frames_->forget(*this);
  give_up_old();
}

void Paged::settle() {
  page_frames_->settle(*this);
  give_up_old();
}

void Paged::bring(const std::vector<size_t>& offsets, size_t bytes, How how) { page_frames_->bring(*this, offsets, bytes, how); }

std::string Paged::failure() { return page_frames_->failure(*this); }

void Paged::give_up_old() {
  if (old != nullptr) request.tier->release(std::exchange(old, nullptr));
}

void Paged::get(size_t chunk, size_t count, char* to) const {
  const size_t has = filled(chunk, count);
  std::memset(to + has, 0, length(chunk, count) - has);
  if (places[chunk] == kNowhere) return void(std::memset(to, 0, has));
  request.tier->get_part(place(chunk), request.bytes, offset(chunk), to, has);
}

void Paged::expect(size_t chunk, size_t count) const {
  if (places[chunk] != kNowhere) request.tier->store().medium().expect(place(chunk)->offset + offset(chunk), filled(chunk, count));
}

void Paged::put(size_t chunk, size_t count, const char* from) {
  request.tier->write_part(request.extent, request.bytes, offset(chunk), from, filled(chunk, count));
  std::fill_n(places.begin() + static_cast<std::ptrdiff_t>(chunk), count, kStored);
}

}  // namespace memfit
